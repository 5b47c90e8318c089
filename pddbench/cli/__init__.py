"""The `pddbench` command: a group whose subcommands are imported only when they are used, so that help is fast."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from pddbench import __version__, exitcodes
from pddbench.cli.examples import attach
from pddbench.cli.groups import known
from pddbench.errors import PddbenchError
from pddbench.text import one_line, printable

_COMMANDS = {
    "run": ("pddbench.cli.run:run", "Run an experiment: a workload on several arms, ending in a side-by-side table."),
    "replay": ("pddbench.cli.replay:replay", "Replay a trace against one live OpenAI-compatible endpoint."),
    "up": ("pddbench.cli.up:up", "Serve an emulated deployment as a live OpenAI endpoint."),
    "simulate": ("pddbench.cli.simulate:simulate", "Run the emulated arms of an experiment in virtual time."),
    "trace": ("pddbench.cli.trace:trace", "Validate, describe, convert and make traces."),
    "calibrate": (
        "pddbench.cli.calibrate:calibrate",
        "Measure this host's own error against load, with a server of known truth.",
    ),
    "wan": ("pddbench.cli.wan:wan", "Probe the WAN backends; run commands over a link; shape a real device."),
    "report": ("pddbench.cli.report:report", "Print the table of a run again; write report.html and CI files."),
    "swimlane": ("pddbench.cli.swimlane:swimlane", "Draw what each role did for a request of an emulated arm."),
    "compare": ("pddbench.cli.compare:compare", "Compare two runs, or two arms of them."),
    "check": ("pddbench.cli.check:check", "Check a finished run against thresholds (exit 99 on a breach)."),
    "capacity": ("pddbench.cli.capacity:capacity", "Find the largest load at which each arm meets its objectives."),
    "money": ("pddbench.cli.money:money", "Vary the prices behind a capacity search: BCR grid, even prices."),
    "bathtub": ("pddbench.cli.bathtub:bathtub", "Read a hit sweep: dips of efficiency, revenue over the hit rate."),
    "claims": ("pddbench.cli.claims:claims", "Measure again what is claimed for split prefill and decode."),
    "feasibility": ("pddbench.cli.feasibility:feasibility", "Compare the KV of prompts with a line: does it fit?"),
    "hlog": ("pddbench.cli.hlog:hlog", "Export latencies as HDR histograms, and merge such files."),
    "recover": ("pddbench.cli.recover:recover", "Finish the run folder of a run that was killed."),
    "init": ("pddbench.cli.init:init", "Write an experiment file with comments, to start from."),
    "doctor": ("pddbench.cli.doctor:doctor", "Say what will and will not work on this machine, and what to do."),
}

_EPILOG = """\b
Exit codes: 0 good; 1 the world failed (unreachable, not SSE, no request succeeded);
2 what you gave cannot be used; 98 the measurement is invalid; 99 a threshold was
breached; 130/143 stopped by a signal, after saving."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module behind a name; for the group's own help a light stand-in is enough."""
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        attach(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for a misspelt name."""
        return super().resolve_command(ctx, known(ctx, args, list(_COMMANDS)))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line a command, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="pddbench %(version)s")
def cli() -> None:
    """Replay agentic traces against live LLM endpoints: TTFT tails, hand-off overhead, throughput per cost."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command; every error a user can cause ends in one sentence and its exit code."""
    try:
        code = cli.main(args=list(argv) if argv is not None else None, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(exitcodes.BAD_INPUT)
    except PddbenchError as error:
        click.echo(one_line(f"pddbench: {error}"), err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("pddbench: stopped", err=True)
        sys.exit(exitcodes.SIGINT)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away (`| head`): not an error of ours
        sys.exit(exitcodes.GOOD)
    except OSError as error:
        # a full disk, a file that went away: what was saved stays, and `pddbench recover` finishes a run folder
        where = f"{error.filename}: " if error.filename else ""
        reason = os.strerror(error.errno) if error.errno else printable(str(error))
        click.echo(f"pddbench: {where}{reason}; what was saved so far stays (see `pddbench recover`)", err=True)
        sys.exit(exitcodes.WORLD_FAILED)
    sys.exit(code if isinstance(code, int) else exitcodes.GOOD)
