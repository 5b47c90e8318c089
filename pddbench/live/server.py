"""The live page, the snapshot it draws and `/metrics`, by HTTP, on a socket that was bound before any traffic."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from string import Template

import msgspec

from pddbench.errors import InputError
from pddbench.live.board import Board
from pddbench.live.exposition import exposition

LOOPBACK = "127.0.0.1"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def address(text: str) -> tuple[str, int]:
    """`:9464`, `9464`, `0.0.0.0:9464` or `[::1]:9464` as host and port; without a host it is loopback."""
    found = re.fullmatch(r"(?:(?P<host>[^\s\[\]:]*|\[[0-9a-fA-F:.]+\]):)?(?P<port>\d{1,5})", text.strip())
    if found is None or int(found["port"]) > 65535:
        raise InputError(f"--serve {text!r}: give :PORT (this machine only) or ADDRESS:PORT, as in --serve :9464")
    return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])


def bind(text: str) -> socket.socket:
    """A listening socket for `--serve`; InputError when the address cannot be had."""
    host, port = address(text)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(16)
    except (OSError, UnicodeError) as error:  # the latter from a host name that cannot be one
        reason = getattr(error, "strerror", None) or "no such address"
        raise InputError(f"--serve {text}: cannot listen there ({reason}); choose another port or address") from None
    return listener


def url(listener: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve(listener: socket.socket, board: Board, lock: threading.Lock) -> Callable[[], None]:
    """Answer on `listener` from threads of its own; the returned function stops it. `lock` guards the board."""
    page = live_page()

    def answer(path: str) -> tuple[str, bytes] | None:
        if path == "/":
            return "text/html; charset=utf-8", page
        with lock:
            if path == "/state.json":
                return "application/json", msgspec.json.encode(board.snapshot(time.monotonic_ns()))
            if path == "/metrics":
                return _TEXT, exposition(board, time.monotonic_ns()).encode()
        return None

    server = _Server(listener, answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, answer: Callable[[str], tuple[str, bytes] | None]) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.answer = answer


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10
    server_version = "pddbench"
    sys_version = ""

    def do_GET(self) -> None:
        """One of three paths; whatever else is 404."""
        found = self.server.answer(self.path.partition("?")[0])
        kind, body = found or ("text/plain; charset=utf-8", b"only /, /state.json and /metrics are here\n")
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: stderr belongs to the run."""


def live_page() -> bytes:
    """The page; its policy allows exactly its own style and script, and connections to where it came from."""
    style, script = _asset("live.css"), _asset("live.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("live.html")).substitute(policy=policy, style=style, script=script).encode()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (resources.files("pddbench.live") / "assets" / name).read_text(encoding="utf-8")
