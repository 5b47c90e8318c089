"""Which arm runs when: one at a time, palindromic over repeats, so that a slow drift of the host cancels out."""

from __future__ import annotations

import secrets

from pddbench.workload.experiment import Arm


def palindromic(arms: list[str], repeats: int) -> list[tuple[str, int]]:
    """(arm, repeat) in order of execution: A B C, then C B A, and so on; repeats count from 1."""
    order: list[tuple[str, int]] = []
    for repeat in range(1, repeats + 1):
        names = arms if repeat % 2 else arms[::-1]
        order += [(name, repeat) for name in names]
    return order


def fresh_salts(repeats: int) -> dict[int, str]:
    """A new random salt for each repeat, the same for all arms of it."""
    return {repeat: secrets.token_hex(8) for repeat in range(1, repeats + 1)}


def cache_domain(arm: Arm) -> str:
    """Where an arm's prefix cache lives; arms of one domain would hit each other's entries."""
    if arm.cache_domain:
        return arm.cache_domain
    return f"emulated:{arm.name}" if arm.base_url is None else arm.base_url.rstrip("/").removesuffix("/v1")


def arm_salts(arms: list[Arm], salt: str) -> dict[str, str]:
    """The salt of each arm in one repeat: `salt`, plus the arm's name where several share a cache domain."""
    domains = [cache_domain(arm) for arm in arms]
    return {
        arm.name: salt if domains.count(domain) == 1 else f"{salt}/{arm.name}"
        for arm, domain in zip(arms, domains, strict=True)
    }
