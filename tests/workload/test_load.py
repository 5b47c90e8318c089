"""The experiment file: every mistake is one sentence that names the key, before any traffic."""

import re

import pytest

from pddbench.errors import InputError
from pddbench.workload.load import load_experiment

GOOD = """
name = "x"
[workload]
trace = "t.trace.jsonl"
arrival = "poisson"
session_rate = 1.0
[[arm]]
name = "mine"
base_url = "http://127.0.0.1:1/v1"
model = "m"
"""


def write(tmp_path, text):
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return path


def test_good_file_resolves_the_trace_beside_itself(tmp_path):
    """Without it, an experiment only works from its own folder."""
    experiment = load_experiment(write(tmp_path, GOOD))
    assert experiment.workload.trace == str(tmp_path / "t.trace.jsonl")
    assert experiment.arm[0].name == "mine"


CASES = [
    ("name =", "nam =", "unknown key 'nam'"),
    ("session_rate = 1.0", "sesion_rate = 1.0", "did you mean 'session_rate'"),
    ("session_rate = 1.0", "", "needs workload.session_rate"),
    ("session_rate = 1.0", "session_rate = -1", "must be above 0"),
    ("session_rate = 1.0", "session_rate = 1.0\ntime_scale = 0.1", "exclude each other"),
    ("session_rate = 1.0", 'session_rate = "fast"', "workload.session_rate: expected"),
    ('arrival = "poisson"', 'arrival = "posson"', "workload.arrival: invalid"),
    ('arrival = "poisson"', 'arrival = "trace"', "no effect"),
    ('base_url = "http://127.0.0.1:1/v1"', "", "exactly one"),
    ('base_url = "http://127.0.0.1:1/v1"', 'base_url = "ftp://x"', "not an http"),
    ('base_url = "http://127.0.0.1:1/v1"', 'base_url = "http://x:99999999"', "impossible port"),
    ('model = "m"', "", "model is missing"),
    ('model = "m"', 'model = "m"\nprofile = "vlm"', "did you mean 'vllm'"),
    ('model = "m"', 'model = "m"\nendpoint = "/v1/chat/completions"', "cannot take token ids"),
    ('model = "m"', 'model = "m"\nspeed = 2.0', "for emulated arms only"),
    ('name = "mine"', 'name = "Mine!"', "for arm names"),
    ("[[arm]]", "[slo]\nttft_ms = 0\n[[arm]]", "slo.ttft_ms"),
    ("[[arm]]", "[cost]\nline = -1.0\n[[arm]]", "cannot be negative"),
    ("[[arm]]", "[cost]\nline = inf\n[[arm]]", "cost.line = inf"),
    ("[[arm]]", "[cost]\nchips = { A = nan }\n[[arm]]", "cost.chips.A = nan"),
    ("[[arm]]", "[slo]\nttft_ms = nan\n[[arm]]", "slo.ttft_ms = nan"),
    ("[[arm]]", "[[arm]", "not valid TOML"),
]


@pytest.mark.parametrize(("old", "new", "says"), CASES)
def test_each_mistake_is_one_sentence(tmp_path, old, new, says):
    """Without it, a typing error changes the workload silently or ends in a traceback."""
    assert old in GOOD
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        load_experiment(write(tmp_path, GOOD.replace(old, new, 1)))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_missing_file_and_folder(tmp_path):
    """Without it, a wrong path ends in a traceback."""
    with pytest.raises(InputError, match="no such file"):
        load_experiment(tmp_path / "none.toml")
    with pytest.raises(InputError, match="is a folder"):
        load_experiment(tmp_path)


def test_sped_up_emulator_beside_a_real_endpoint_is_refused(tmp_path):
    """Without it, a table would compare five emulated seconds with one real one."""
    text = GOOD + '[[arm]]\nname = "emu"\nemulated = "pdd"\nspeed = 5.0\n'
    with pytest.raises(InputError, match="different speeds"):
        load_experiment(write(tmp_path, text))


def test_two_arms_of_one_name_are_refused(tmp_path):
    """Without it, the second arm overwrites the first one's files."""
    text = GOOD + '[[arm]]\nname = "mine"\nemulated = "pdd"\n'
    with pytest.raises(InputError, match="named twice"):
        load_experiment(write(tmp_path, text))
