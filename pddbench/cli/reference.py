"""docs/reference.md from the code: `python -m pddbench.cli.reference > docs/reference.md`. A test compares the two."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from pddbench import exitcodes
from pddbench.cli import cli
from pddbench.cli.examples import EXAMPLES
from pddbench.cli.reference_notes import NOTES

_HEAD = """# Reference

Made from the code by `python -m pddbench.cli.reference`; a test compares. How things work: [docs](README.md). What the
figures mean: [METRICS.md](../METRICS.md).
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *commands(), *experiment(), *thresholds(), *rules(), *codes()])


def commands() -> Iterator[str]:
    """Every command with its usage, options and examples."""
    yield "## Commands\n"
    for path, command in leaves(cli, ()):
        name = " ".join(path)
        context = click.Context(command, info_name=f"pddbench {name}")
        yield f"### pddbench {name}\n"
        yield _paragraphs(command.help or "") + "\n"
        yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
        options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        if options:
            yield "| option | meaning |\n|---|---|"
            yield from map(_option, options)
            yield ""
        if name in EXAMPLES:
            yield "```sh\n" + "\n".join(EXAMPLES[name]) + "\n```\n"


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, with the words that lead to it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None and not below.hidden:
            yield from leaves(below, (*path, name))


def _paragraphs(text: str) -> str:
    """A docstring of click: paragraphs without their line ends."""
    parts = inspect.cleandoc(text).replace("\b\n", "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def _option(option: click.Option) -> str:
    """A row of the table; not by click's own help record, whose form changes from version to version."""
    kind = option.type
    takes = option.metavar or (
        "|".join(kind.choices) if isinstance(kind, click.Choice) else kind.name.split()[0].upper()
    )
    flags = ", ".join(option.opts) + ("" if option.is_flag else f" {takes}")
    more = [f"default {option.default}"] if option.show_default and option.default is not None else []
    more += ["required"] if option.required else []
    said = (option.help or "") + (f" [{', '.join(more)}]" if more else "")
    return f"| `{_cell(flags)}` | {_cell(said)} |"


def _cell(text: str) -> str:
    """Text that stays in its cell."""
    return " ".join(text.replace("|", "\\|").split())


def experiment() -> Iterator[str]:
    """The keys of an experiment file, table by table, as `workload.experiment` declares them."""
    from pddbench.workload import experiment as ex

    tables: dict[str, type[msgspec.Struct]] = {
        "(top)": ex.Experiment,
        "[workload]": ex.Workload,
        "[slo]": ex.Slo,
        "[wan]": ex.Wan,
        "[cost]": ex.Cost,
        "[emulator]": ex.EmulatorOptions,
        "[emulator] changes": ex.RoleChange,
        "[llamacpp]": ex.LlamaCppOptions,
        "[[arm]]": ex.Arm,
        "[[arm]] roles.NAME": ex.Role,
    }
    yield "## The experiment file\n"
    yield "TOML. An unknown key is an error. `pddbench init` writes one with comments.\n"
    for name, table in tables.items():
        yield f"### {name}\n"
        yield _paragraphs(table.__doc__ or "") + "\n"
        yield "| key | type | default | |\n|---|---|---|---|"
        notes = NOTES.get(name, {}) | _notes(table)
        for field in msgspec.structs.fields(table):
            default = "required" if field.required else f"`{_default(field)}`"
            yield f"| `{field.name}` | {_cell(_type(field.type))} | {default} | {_cell(notes.get(field.name, ''))} |"
        yield ""


def _notes(table: type) -> dict[str, str]:
    """What the comment behind a field says of it."""
    found = re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(table), re.MULTILINE)
    return dict(found)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return "unset" if field.default is None else _toml(field.default)
    made = field.default_factory() if callable(field.default_factory) else None
    return _toml(made) if isinstance(made, dict | list) else "see below"


def _toml(value: Any) -> str:
    text: str = msgspec.json.encode(value).decode()
    return text


def _type(annotation: Any) -> str:
    """A type in the words of a TOML file."""
    text = str(annotation) if not isinstance(annotation, type) else annotation.__name__
    text = re.sub(r"typing\.|pddbench\.workload\.experiment\.|NoneType|None", "", text)
    text = re.sub(r"Optional\[(.*)\]$", r"\1", text)
    text = re.sub(r"Literal\[([^\]]*)\]", lambda found: found[1].replace("'", '"'), text)
    return re.sub(r"\s*\|\s*$", "", text.strip())


def thresholds() -> Iterator[str]:
    """Every metric that a threshold can name."""
    from pddbench.analyze.registry import METRICS

    yield "## Thresholds\n"
    yield (
        "`ARM.METRIC.STAT OP VALUE UNIT` or `ARM.METRIC.STAT OP k * ARM.METRIC.STAT`, OP one of `<` `<=` `>` `>=`, in "
        'an experiment file under `[check]` (`= "fail"` or `"warn"`) or after `pddbench check --that`.\n'
    )
    yield "| metric | unit | statistics | |\n|---|---|---|---|"
    for metric in METRICS.values():
        stats = ", ".join(f"`{stat}`" for stat in metric.stats)
        yield f"| `{metric.name}` | {metric.unit} | {stats} | {_cell(metric.meaning)} |"
    yield ""


def rules() -> Iterator[str]:
    """Every rule that `--allow` takes."""
    from pddbench.analyze.trust import RULES

    yield "## Rules\n"
    yield "A broken one ends as 98; `--allow NAME`, or `allow = [NAME]` in the file, makes it a warning.\n"
    yield "| rule | broken when |\n|---|---|"
    for name, rule in RULES.items():
        yield f"| `{name}` | {_cell((rule.__doc__ or '').splitlines()[0])} |"
    yield ""


def codes() -> Iterator[str]:
    """Every exit code with what its comment says."""
    yield "## Exit codes\n"
    yield "| code | |\n|---|---|"
    notes = dict(re.findall(r"^([A-Z_]+) = \d+(?:  # (.*))?$", inspect.getsource(exitcodes), re.MULTILINE))
    words = {"GOOD": "good; single failed requests are in the table", "THRESHOLD": "a threshold was breached",
             "SIGINT": "stopped by Ctrl-C, after saving", "SIGTERM": "stopped by SIGTERM, after saving"}  # fmt: skip
    for name, note in notes.items():
        yield f"| {getattr(exitcodes, name)} | {_cell(words.get(name) or note or '')} |"
    yield "\nWhere several apply: 130 and 143 before 1 before 98 before 99.\n"


if __name__ == "__main__":
    click.echo(reference().rstrip("\n"))
