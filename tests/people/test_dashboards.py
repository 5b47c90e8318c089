"""dashboards/: what Grafana asks for is exported, and Debian's Prometheus scrapes it with the very configuration."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from live_kit import S, busy_board, served

from pddbench.live.exposition import exposition, names

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "dashboards/grafana/dashboards/pddbench.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_every_metric_a_panel_names_is_exported():
    """A panel that stays empty looks like a run that does nothing."""
    asked = {name for query in QUERIES for name in re.findall(r"pddbench_[a-z0-9_]+", query)}
    assert len(asked) > 12
    assert asked <= names(exposition(busy_board(), 9 * S))


def test_every_exported_metric_is_documented():
    """docs/live.md is where people look for what a name means."""
    text = (ROOT / "docs/live.md").read_text()
    told = set(re.findall(r"`(pddbench_[a-z_]+)`", text))
    exported = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names(exposition(busy_board(), 9 * S))}
    assert exported == told


def test_provisioning_fits_together():
    """Data source, dashboard folder and ports are named in four files."""
    compose = (ROOT / "dashboards/compose.yml").read_text()
    assert "./grafana/dashboards:/var/lib/grafana/dashboards" in compose and "./prometheus.yml:" in compose
    source = (ROOT / "dashboards/grafana/provisioning/datasources/prometheus.yml").read_text()
    (uid,) = re.findall(r"uid: (\S+)", source)
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {uid}
    assert (
        "path: /var/lib/grafana/dashboards"
        in (ROOT / "dashboards/grafana/provisioning/dashboards/pddbench.yml").read_text()
    )
    assert "--web.listen-address=127.0.0.1:9090" in compose and "127.0.0.1:9090" in source


def need_prometheus():
    if shutil.which("prometheus") is None:
        said = "prometheus is missing: apt-get install prometheus"
        pytest.fail(said) if os.environ.get("CI") == "true" else pytest.skip(said)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def ask(port, query):
    address = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(address, timeout=10) as reply:
        return json.load(reply)["data"]["result"]


def wait_for(condition, what):
    until = time.monotonic() + 60
    while True:
        try:
            if found := condition():
                return found
        except OSError:
            pass
        assert time.monotonic() < until, f"waited for {what}"
        time.sleep(0.1)


def test_the_configuration_is_valid():
    """Prometheus does not start with one that is not, and compose only shows a container that restarts."""
    need_prometheus()
    done = subprocess.run(["promtool", "check", "config", str(ROOT / "dashboards/prometheus.yml")], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_prometheus_scrapes_it_and_answers_every_panel(tmp_path):
    """The text format, the configuration and each query, judged by the program that users will run."""
    need_prometheus()
    port = free_port()
    with served(busy_board()) as where:
        text = (ROOT / "dashboards/prometheus.yml").read_text()
        target = where.removeprefix("http://").rstrip("/")
        assert text.count("127.0.0.1:9464") == 1
        text = text.replace("127.0.0.1:9464", target).replace("2s", "200ms")
        (tmp_path / "prometheus.yml").write_text(text)
        server = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            wait_for(lambda: server.poll() is not None or ask(port, "up == 1"), "the first scrape")
            assert server.poll() is None, server.stderr.read().decode()
            wait_for(lambda: ask(port, "count_over_time(pddbench_runs[1m]) >= 3"), "three scrapes")
            for query in QUERIES:
                assert ask(port, query), query
            (failed,) = ask(port, 'pddbench_requests_failed_total{arm="pdd"}')
            assert failed["value"][1] == "1"
        finally:
            server.terminate()
            server.communicate(timeout=30)
