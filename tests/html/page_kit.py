"""Made-up runs full of hostile text, and their pages."""

from __future__ import annotations

import sys
from pathlib import Path

from pddbench.analyze.check import evaluate
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.summary import build, to_dict
from pddbench.report.answer import own_checks
from pddbench.report.html.page import page
from pddbench.runfolder.load import load

sys.path.insert(0, str(Path(__file__).parents[1]))
from analyze.synth import Recipe, fail, make_run

EVIL = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\x1b[31m<!-- ${title} $title"


def hostile(arm, repeat, requests, *_):
    """Failures and ids with text that wants to be markup."""
    if arm == "naive":
        for i in range(0, 80, 9):
            fail(requests, i, "http_error", EVIL)
    requests["session_id"] = [EVIL + text if text.startswith("s1") else text for text in requests["session_id"]]


def hostile_manifest(manifest):
    """Server and user text in the manifest, shown under configuration."""
    manifest["name"] = EVIL
    manifest["arms"]["pdd"]["model"] = EVIL
    manifest["check"] = {"pdd.ttft.p90 < 2 s": "fail"}
    manifest["cost"]["currency"] = "<b>&"


def make_page(folder, **recipe):
    """The page of a made-up run."""
    data = Dataset(load(make_run(folder, Recipe(**recipe))))
    summary = to_dict(build(data))
    return page(data, summary, evaluate(own_checks(data), data)), summary
