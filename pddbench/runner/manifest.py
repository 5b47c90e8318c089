"""The manifest: what was run, on what, with which seeds and salts; written first, and again when the run ends."""

from __future__ import annotations

import hashlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from pddbench.analyze import money
from pddbench.calibrate import store as calibration
from pddbench.runfolder.schema import SCHEMA_VERSION
from pddbench.runner import host
from pddbench.runner.prepare import ArmSetup, Measured, Prepared
from pddbench.runner.redact import redact_argv, redact_config
from pddbench.text import redact_url
from pddbench.workload.plan import NS, planned_duration_s

FILE = "manifest.json"


def utc_now() -> str:
    """The time now, ISO 8601 with zone, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def build(prepared: Prepared, salts: dict[int, str]) -> dict[str, Any]:
    """The manifest as known before traffic (redacted)."""
    experiment = prepared.experiment
    config = redact_config(msgspec.to_builtins(experiment))
    work = experiment.workload
    plan, measured = prepared.plan, Measured.of(prepared.plan)
    return {
        "schema_version": SCHEMA_VERSION,
        "name": experiment.name,
        "created_utc": utc_now(),
        "finished_utc": None,
        "argv": redact_argv(sys.argv[1:]),
        "config": config,
        "config_sha256": hashlib.sha256(msgspec.json.encode(config, order="sorted")).hexdigest(),
        "trace": {
            "path": work.trace,
            "sha256": prepared.trace_sha256,
            "format": prepared.trace.header.source_format,
            "source": prepared.trace.header.source,
            "licence": prepared.trace.header.licence,
            "requests": prepared.trace_requests,
            "assumptions": prepared.trace.header.assumptions,
            "counts": prepared.trace.header.counts,
        },
        "plan": {
            "sha256": plan.sha256,
            "requests": len(measured.input_tokens),
            "sessions": measured.sessions,
            "counts": plan.counts,
            "notes": plan.notes,
            "planned_duration_s": planned_duration_s(plan),
        },
        "seed": work.seed,
        "repeats": work.repeats,
        "salts": {str(repeat): salt for repeat, salt in salts.items()},
        "order": [list(run) for run in prepared.order],
        "arms": {setup.name: _arm(setup, prepared) for setup in prepared.arms},
        "timing": work.timing,
        "prompt": work.prompt,
        "output": work.output,
        "history": work.history,
        "window": {"from_s": plan.window.from_ns / NS, "until_s": plan.window.until_ns / NS} if plan.window else None,
        "time_scale": work.time_scale,
        "idle_cap_s": work.idle_cap_s,
        "slo": {k: v for k, v in msgspec.to_builtins(experiment.slo).items() if v is not None},
        "cost": {name: getattr(experiment.cost, name) for name in ("currency", "chips", "line")},
        "wan": prepared.wan,
        "emulator": {"speed": prepared.speed} if any(setup.spec for setup in prepared.arms) else None,
        "time_unit": "ns of experiment time (wall time x emulator speed)",
        "allow": experiment.allow,
        "check": experiment.check,
        "versions": host.versions(),
        "host": host.host(),
        "clocks": host.clocks(),
        "git": host.git_state(Path(__file__).parent),
        "partial": False,
        "signal": None,
        "calibration": calibration.quoted(prepared.workers),
        "workers": prepared.workers,
        "runs": [],
    }


def _arm(setup: ArmSetup, prepared: Prepared) -> dict[str, Any]:
    spec, mini = setup.spec, setup.mini
    roles = setup.arm.roles
    if spec is not None:
        role_facts = {name: {"chip": role.chip.name, "count": role.count} for name, role in spec.roles.items()}
    else:
        role_facts = {name: {"chip": role.chip, "count": role.count} for name, role in roles.items()}
    facts: dict[str, Any] = {
        "emulated": setup.arm.emulated,
        "engine": setup.arm.engine,
        "deployment": setup.arm.deployment,
        "base_url": redact_url(setup.arm.base_url) if setup.arm.base_url else None,
        "url": redact_url(setup.url) if setup.url else None,
        "model": setup.arm.model,
        "profile": setup.profile.name,
        "block_tokens": setup.block_tokens,
        "speed": setup.speed,
        "kv_scale": spec.kv_scale if spec else None,
        "roles": role_facts,
        "line": setup.arm.line,
        "seam_free": setup.arm.seam_free,
        "cache_domain": redact_url(str(setup.facts["cache_domain"])) if setup.arm.base_url else setup.arm.name,
        "spec": msgspec.to_builtins(spec or mini),
        "preflight": None,
    }
    facts["line"] = money.uses_line(facts)
    facts["cost_per_hour"] = money.cost_per_hour(facts, msgspec.to_builtins(prepared.experiment.cost))
    return facts


def write(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest so that a crash leaves the old one or the new one, never half."""
    temporary = folder / (FILE + ".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    temporary.replace(folder / FILE)
