"""A server's own counters: its `/metrics` page before, every few seconds during, and after a run.

A thread fetches and keeps compressed pages; they are parsed after the run, so that reading them never delays a
request. No credential is sent (a metrics port is often another server's), no redirect followed. A page that is not
there is fine: what was found is said in the manifest.
"""

from __future__ import annotations

import http.client
import threading
import time
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pddbench.deploy import prometheus
from pddbench.text import printable, redact_url

INTERVAL_S = 5.0
TIMEOUT_S = 5.0
SETTLE_S = 0.5  # engines count a request a moment after its last token
MAX_PAGE_BYTES = 4 << 20
MAX_KEPT_BYTES = 256 << 20
OFF = "off"


class Page(msgspec.Struct, frozen=True):
    """A page as it came, zlib-compressed, with CLOCK_MONOTONIC ns."""

    t_ns: int
    compressed: bytes

    @property
    def text(self) -> str:
        """The page."""
        return zlib.decompress(self.compressed).decode("utf-8", "replace")


def metrics_url(given: str | None, url: str) -> str | None:
    """Where an arm's metrics are: as given (None: `/metrics` beside `/v1` of the request URL); None when `off`."""
    if given is not None:
        return None if given == OFF else given
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.partition('/v1/')[0]}/metrics"


def fetch(url: str) -> bytes:
    """One page. Raises `OSError` or `http.client.HTTPException` with a sentence about anything but a small 200."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    connection = (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(
        parts.hostname or "", parts.port, timeout=TIMEOUT_S
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "text/plain", "Accept-Encoding": "identity"})
        response = connection.getresponse()
        body = response.read(MAX_PAGE_BYTES + 1)
    finally:
        connection.close()
    if response.status != 200:
        raise OSError(f"HTTP {response.status}")
    if len(body) > MAX_PAGE_BYTES:
        raise OSError(f"the page is larger than {MAX_PAGE_BYTES >> 20} MiB")
    return body


class Scraper:
    """Scrapes `url` for as long as the context lasts; nothing at all when it is None or the first page has no series.

    `absent` says why there is nothing; `failed` counts pages that did not come later on.
    """

    def __init__(self, url: str | None, interval_s: float = INTERVAL_S) -> None:
        self._url, self._interval_s = url, interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._kept_bytes = 0
        self.pages: list[Page] = []
        self.absent: str | None = None if url else "switched off"
        self.failed = 0

    def __enter__(self) -> Scraper:
        self._first()
        if self.absent is None:
            self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            if error is None:
                time.sleep(SETTLE_S)
            self._take()

    @property
    def facts(self) -> dict[str, Any]:
        """For the manifest: where, whose counters, how many pages; or why none."""
        url = redact_url(self._url) if self._url else None
        if self.absent is not None:
            return {"url": url, "absent": self.absent}
        engines = prometheus.engines(prometheus.known(self.pages[0].text))
        return {"url": url, "engines": engines, "pages": len(self.pages), "failed": self.failed}

    def _first(self) -> None:
        """The page before the run; without one there will be no others."""
        if self._url is None:
            return
        problem = self._take()
        if problem is None and not prometheus.known(self.pages[0].text):
            self.pages.clear()
            problem = "no series of a known engine on the page"
        self.absent = problem

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            if self._kept_bytes < MAX_KEPT_BYTES:
                self._take()

    def _take(self) -> str | None:
        """Keep a page; returns what was wrong instead."""
        assert self._url is not None
        try:
            page = Page(time.monotonic_ns(), zlib.compress(fetch(self._url), 1))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.failed += 1
            return printable(str(error) or type(error).__name__)
        self.pages.append(page)
        self._kept_bytes += len(page.compressed)
        return None


def rows(pages: list[Page], arm: str, repeat: int, t0_ns: int) -> list[dict[str, Any]]:
    """Rows of the SERVER table: all series of the first page, then each value that changed."""
    out: list[dict[str, Any]] = []
    last: dict[str, float] = {}
    for page in pages:
        now = prometheus.known(page.text)
        for metric, value in now.items():
            if last.get(metric) != value:
                out.append(
                    {"arm": arm, "repeat": repeat, "t_ns": page.t_ns - t0_ns, "process": "endpoint",
                     "metric": metric, "value": value}
                )  # fmt: skip
        last |= now
    return out


def save(scraper: Scraper, folder: Path, arm: str, repeat: int, t0_ns: int) -> None:
    """Write `server/<arm>.<repeat>.parquet` if there is anything to write."""
    if not scraper.pages:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pddbench.runfolder.schema import SERVER, arrow_schema

    table = pa.Table.from_pylist(rows(scraper.pages, arm, repeat, t0_ns), schema=arrow_schema(SERVER))
    pq.write_table(table, folder / "server" / f"{arm}.{repeat}.parquet")
