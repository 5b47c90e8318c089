"""The catalogue: what is recorded is what the generator makes."""

import copy
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from pddbench.cli.trace import trace as group
from pddbench.errors import InputError
from pddbench.trace.quota.presets import NAMES
from pddbench.workload import catalogue

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
FOLDERS = sorted(path.parent for path in WORKLOADS.glob(f"*/{catalogue.FILE}"))


def test_every_preset_has_its_folder():
    """A preset that nobody can look up is not in the catalogue."""
    assert {folder.name for folder in FOLDERS} == set(NAMES)


@pytest.mark.parametrize("name", ["pdd-agentic", "fixed-64k-h90"])
def test_the_recorded_figures_are_those_of_the_trace(name):
    """Figures recorded once go stale with the next change of the generator."""
    result = CliRunner().invoke(group, ["observe", "--check", str(WORKLOADS / name)], standalone_mode=False)
    assert (result.return_value, result.exception) == (0, None), result.stdout


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_readme_quotes_what_is_recorded(folder):
    """A README with other figures than the file beside it."""
    readme = " ".join((folder / "README.md").read_text().split())
    recorded = catalogue.read_observed(folder)
    assert catalogue.summary_line(recorded) in readme
    assert recorded["made_by"] == catalogue.load_entry(folder).made_by
    assert sum(recorded["oracle"]["counts"]) == recorded["requests"]


def test_a_change_is_found_and_named():
    """A check that cannot fail is none."""
    recorded = catalogue.read_observed(WORKLOADS / "chat")
    assert catalogue.differences(recorded, copy.deepcopy(recorded)) == []
    changed = copy.deepcopy(recorded)
    changed["oracle"]["counts"][0] += 1
    changed["mean_hit"] += 0.1
    changed["kinds"]["new"] = 5
    found = catalogue.differences(recorded, changed)
    assert [line.split(":")[0] for line in found] == ["oracle.counts[0]", "mean_hit", "kinds.new"]


def test_check_exits_99_where_a_figure_differs(tmp_path):
    """CI sees exit codes only."""
    entry = 'name = "x"\npreset = "chat"\nrequests = 60\nseed = 1\n'
    (tmp_path / catalogue.FILE).write_text(entry)
    run = CliRunner().invoke
    assert run(group, ["observe", str(tmp_path)], standalone_mode=False).return_value == 0
    assert run(group, ["observe", "--check", str(tmp_path)], standalone_mode=False).return_value == 0
    figures = catalogue.read_observed(tmp_path)
    figures["hit_tokens"] *= 2
    (tmp_path / catalogue.OBSERVED).write_bytes(msgspec.json.encode(figures))
    result = run(group, ["observe", "--check", str(tmp_path)], standalone_mode=False)
    assert result.return_value == 99 and "hit_tokens" in result.stdout


@pytest.mark.parametrize(
    "text", ["name = 1", "name = ", 'name = "x"\npreset = "chat"\nrequests = 9\nseed = 1\n[workload]\narival = "trace"']
)
def test_a_broken_entry_names_its_file(tmp_path, text):
    """A typing error in `[workload]` would only show when somebody runs it."""
    (tmp_path / catalogue.FILE).write_text(text)
    with pytest.raises(InputError, match=r"workload\.toml"):
        catalogue.load_entry(tmp_path)
    with pytest.raises(InputError, match=r"observed\.json.*cannot be read"):
        catalogue.read_observed(tmp_path)
