"""Numbers of the command line that are none end in a usage error that names the flag."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from pddbench.cli import cli
from pddbench.cli.common import Finite

FLAGS = [
    (name, option.opts[0])
    for name in ("bathtub", "capacity", "money")
    for option in cli.get_command(click.Context(cli), name).params
    if isinstance(option.type, Finite)
]


@pytest.mark.parametrize(("name", "flag"), FLAGS)
@pytest.mark.parametrize("value", ["nan", "-inf", "1e400"])
def test_no_number_is_refused(name, flag, value):
    """A nan passes every comparison, and was a traceback in a later division."""
    done = CliRunner().invoke(cli, [name, "nowhere.toml", f"{flag}={value}"])
    assert done.exit_code == 2 and flag in done.output and "not a finite number" in done.output


def test_every_float_flag_is_covered():
    """A flag that is added with click's own float would let nan through."""
    for name in ("bathtub", "capacity", "money"):
        plain = [one for one in cli.get_command(click.Context(cli), name).params if one.type is click.FLOAT]
        assert plain == []
    assert len(FLAGS) == 9
