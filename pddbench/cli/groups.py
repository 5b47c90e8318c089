"""Groups of commands that suggest the name that was probably meant."""

from __future__ import annotations

import click

from pddbench.errors import suggest


def known(context: click.Context, words: list[str], names: list[str]) -> list[str]:
    """`words` unchanged; a usage error with a suggestion when the first is none of `names`."""
    if words and not words[0].startswith("-") and words[0] not in names:
        context.fail(f"No such command {words[0]!r}: {suggest(words[0], names)}")
    return words


class Group(click.Group):
    """As click's, with a suggestion for a misspelt name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names."""
        return super().resolve_command(ctx, known(ctx, args, self.list_commands(ctx)))
