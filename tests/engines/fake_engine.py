"""A server of our own that behaves as a real engine was seen to: for what must stay fixed without the engine."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeEngine:
    """What to do, and what was seen. `cached`: what usage reports (None: nothing); `page`: the /metrics page by the
    number of completions served, or a status. `silent`: how many completions at first have tokens without any text,
    with that finish reason."""  # fmt: skip

    def __init__(self, *, drop_reused=False, cached=None, page=404, silent=(0, "")):
        self.drop_reused, self.cached, self.page, self.silent = drop_reused, cached, page, silent
        self.served = 0
        self.paths: list[tuple[str, dict[str, str]]] = []
        self.url = ""


@contextmanager
def serving(engine: FakeEngine):
    """The engine with its `url` set, on a free loopback port."""
    handler = type("Handler", (_Handler,), {"engine": engine})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # a client that has read enough hangs up
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    engine: FakeEngine
    protocol_version = "HTTP/1.1"
    used = False  # of this connection

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        """/metrics, or nothing."""
        self.engine.paths.append((self.path, dict(self.headers)))
        page = self.engine.page(self.engine.served) if callable(self.engine.page) else self.engine.page
        found = self.path == "/metrics" and isinstance(page, str)
        body = page.encode() if found else b"no"
        self.send_response(200 if found else page if isinstance(page, int) else 404)
        if page == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        """A stream of as many tokens as were asked for."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.used and self.engine.drop_reused:
            self.close_connection = True
            return
        self.used = True
        self.engine.served += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        silent = self.engine.served <= self.engine.silent[0]
        for _ in range(0 if silent else body["max_tokens"]):
            self._event({"choices": [{"index": 0, "text": " a", "finish_reason": None}]})
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        if self.engine.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.engine.cached}
        # as llama.cpp: usage comes in a chunk with a choice, with an empty text and the finish reason
        reason = self.engine.silent[1] if silent else "length"
        self._event({"choices": [{"index": 0, "text": "", "finish_reason": reason}], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, value):
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
