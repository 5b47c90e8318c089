"""`import pddbench` and `--help` stay light: what is heavy is imported when it is used."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "pandas", "pyarrow", "aiohttp", "matplotlib", "uvloop", "rich")


@pytest.mark.parametrize(
    "code", ["import pddbench", "from pddbench.cli import cli; cli.main(['--help'], 'pddbench', standalone_mode=False)"]
)
def test_nothing_heavy_is_imported(code):
    """Without it, help takes seconds (aiohttp alone 195 ms, pyarrow 187)."""
    check = f"{code}\nimport sys; print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_every_command_has_help():
    """Without it, a command in the table may not even import."""
    from click.testing import CliRunner

    from pddbench.cli import _COMMANDS, cli

    for name in _COMMANDS:
        result = CliRunner().invoke(cli, [name, "--help"])
        assert result.exit_code == 0, result.output
        assert "Usage:" in result.output
