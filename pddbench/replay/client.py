"""The HTTP client: aiohttp, set up so that it neither queues, retries, follows, decompresses nor times out unasked."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import payload

from pddbench.replay.exchange import Exchange, Reader, Target, compressed, own_failure
from pddbench.replay.headers import hider, request_headers, request_id_value, secrets_of
from pddbench.replay.stall import StallTimer
from pddbench.text import printable, redact_url

READ_BUFFER_BYTES = 1 << 20
MAX_RESPONSE_BYTES = 1 << 30
MAX_ERROR_BODY_BYTES = 64 << 10


class _Body(payload.BytesPayload):
    """A JSON body of any size, written in one go (aiohttp warns above 1 MiB; long prompts of ids are longer)."""

    def __init__(self, body: bytes) -> None:
        super().__init__(b"", content_type="application/json")
        self._value = body
        self._size = len(body)


class HttpClient:
    """Posts bodies to one target and keeps every read with its stamp; a `Transport`. Use inside a running loop."""

    def __init__(self, target: Target) -> None:
        self._target = target
        parts = urlsplit(target.url)
        self._where = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        self._headers = request_headers(target)
        self._secrets = secrets_of(target, self._headers)
        self._hide = hider(self._secrets)
        keep: dict[str, Any] = {"keepalive_timeout": target.keep_alive_s}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, ttl_dns_cache=300, **(keep if target.keep_alive_s > 0 else {"force_close": True})
            ),
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            cookie_jar=aiohttp.DummyCookieJar(),  # a load balancer's cookie would pin all requests to one server
            read_bufsize=READ_BUFFER_BYTES,
            trust_env=target.trust_env,
            trace_configs=[_connection_stamps()],
            auto_decompress=False,
        )

    reader: Reader = "aiohttp"
    lead_ns = 0

    def reader_cpu_ns(self) -> int:
        """None: the event loop reads."""
        return 0

    def gather(self, parts: int) -> bytes:
        """Nothing: all reads are in their exchanges."""
        return b""

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    def newest_read(self) -> tuple[int, bytes] | None:
        """None: the kernel's stamps do not come through TLS and proxies."""
        return None

    async def perform(self, exchange: Exchange, body: bytes, request_id: str) -> None:
        """See `Transport.perform`."""
        stall = StallTimer(exchange, self._target.stall_timeout_s, self._target.request_limit_s)
        try:
            await self._perform(exchange, body, request_id)
        except asyncio.CancelledError:
            if not stall.expired:
                exchange.ending, exchange.error = "cancelled", "stopped while in flight"
                raise
            stall.note(exchange, self._where, self._target.stall_timeout_s)
        except (aiohttp.ClientError, OSError) as error:
            exchange.ending = "connection" if exchange.status is None else "broken"
            exchange.error = self._hide(self._sentence(error, exchange))
        finally:
            exchange.end_ns = time.monotonic_ns()
            stall.cancel()

    async def _perform(self, exchange: Exchange, body: bytes, request_id: str) -> None:
        async with self._session.post(
            self._target.url,
            data=_Body(body),
            headers={**self._headers, "X-Request-Id": request_id_value(request_id)},
            allow_redirects=False,
            trace_request_ctx=exchange,
        ) as response:
            exchange.headers_ns = exchange.last_byte_ns = time.monotonic_ns()
            exchange.content_type = self._hide(response.headers.get("Content-Type", ""))[:200]
            exchange.location = self._hide(response.headers.get("Location", ""))[:1000]
            exchange.error = compressed(self._hide(response.headers.get("Content-Encoding", "")))
            exchange.status = response.status
            exchange.changed = True
            if 200 <= response.status < 300:
                await _keep_reads(response, exchange)
            else:
                await self._keep_error(response, exchange)

    async def _keep_error(self, response: aiohttp.ClientResponse, exchange: Exchange) -> None:
        """The beginning of an error's body, with our own credential taken out should the server repeat it."""
        exchange.ending = "eof"
        parts: list[bytes] = []
        try:
            while sum(map(len, parts)) < MAX_ERROR_BODY_BYTES and (data := await response.content.readany()):
                exchange.last_byte_ns = time.monotonic_ns()
                parts.append(data)
            if not response.content.at_eof():
                response.close()
        finally:
            if parts:
                body = b"".join(parts)[:MAX_ERROR_BODY_BYTES]
                for secret in self._secrets:
                    body = body.replace(secret.encode(), b"***")
                exchange.reads.append((exchange.last_byte_ns, body))

    def _sentence(self, error: Exception, exchange: Exchange) -> str:
        """What went wrong with the connection, for a person."""
        detail = printable(str(error), 160) or type(error).__name__
        if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)):
            return f"TLS with {self._where} failed: {detail}"
        if isinstance(error, aiohttp.ClientConnectorError):
            reason = error.os_error.strerror or str(error.os_error)
            return f"cannot connect to {self._where}: {own_failure(error.os_error)}{printable(reason, 120)}"
        if isinstance(error, aiohttp.ClientPayloadError) and "Not enough data" in str(error):
            detail = "the connection was closed before the answer's end"
        if exchange.status is not None:
            return f"the stream broke off: {detail}"
        if isinstance(error, aiohttp.ClientResponseError):
            return f"the answer of {self._where} is not HTTP: {detail}"
        kind = "a reused connection" if exchange.reused else "the connection"
        return f"{self._where} closed {kind} before it answered ({detail})"


async def _keep_reads(response: aiohttp.ClientResponse, exchange: Exchange) -> None:
    """The hot path: every read as it came, with its stamp."""
    readany = response.content.readany
    keep = exchange.reads.append
    now_ns = time.monotonic_ns
    n_bytes = 0
    while data := await readany():
        exchange.last_byte_ns = t_ns = now_ns()
        keep((t_ns, data))
        n_bytes += len(data)
        if n_bytes > MAX_RESPONSE_BYTES:
            response.close()
            exchange.ending, exchange.error = "too_large", f"the answer is larger than {MAX_RESPONSE_BYTES} bytes"
            return
    exchange.ending = "eof"


def _connection_stamps() -> aiohttp.TraceConfig:
    """Stamps the moment a connection is ready for a request, new or used before."""

    async def ready(_session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
        exchange = context.trace_request_ctx
        exchange.sent_ns = exchange.last_byte_ns = time.monotonic_ns()
        exchange.reused = isinstance(params, aiohttp.TraceConnectionReuseconnParams)
        exchange.changed = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(ready)
    config.on_connection_create_end.append(ready)
    return config


def where(target: Target) -> str:
    """The target for a person: its URL without credentials."""
    return redact_url(target.url)
