"""A policy asked over the network: any server that speaks the OpenAI chat API (vLLM, SGLang, a hosted endpoint).

One request that fails is an unscored answer, after retries where they can help. When nothing has been answered yet and
the server cannot be reached, or refuses the key or the model, the policy cannot be asked at all: EngineError.
A response is read within a total time and size, whatever the server does; redirects are not followed.
"""

import http.client
import io
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from flywheel.core.rollouts import ChatRequest, ChatResponse, EngineError
from flywheel.core.traces import ToolCall

BODY_LIMIT = 8 * 2**20
RETRY_AFTER_LIMIT_S = 30.0


class _Failed(Exception):
    """One attempt at a request failed. `again`: another may do better. `unusable`: no other request would."""

    def __init__(self, reason: str, again: bool = False, unusable: bool = False, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.again, self.unusable, self.after_s = again, unusable, after_s


class OpenAIEngine:
    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str = "",
        timeout_s: float = 120.0,
        concurrency: int = 16,
        price_in: float | None = None,
        price_out: float | None = None,
        retries: int = 3,
        backoff_s: float = 0.5,
    ) -> None:
        """`base_url` ends where `/chat/completions` begins, usually in `/v1`. Prices are dollars per million tokens."""
        self._url = urlsplit(base_url.rstrip("/"))
        try:
            self._port = self._url.port
        except ValueError as error:
            raise EngineError(f"base_url {base_url!r}: {error}") from error
        if self._url.scheme not in {"http", "https"} or not self._url.hostname or self._url.username is not None:
            raise EngineError(f"base_url {base_url!r} is wrong; http://HOST:PORT/v1 or https://HOST/v1 is wanted")
        if concurrency < 1 or timeout_s <= 0:
            raise EngineError(f"concurrency {concurrency} and timeout_s {timeout_s} must be above 0")
        if not (api_key.isascii() and api_key.isprintable()):
            raise EngineError("the API key holds characters that an HTTP header cannot carry")
        self.base_url, self.model = base_url, model
        self._key = api_key
        self._timeout_s, self._concurrency = timeout_s, concurrency
        self._price_in, self._price_out = price_in, price_out
        self._retries, self._backoff_s = retries, backoff_s
        self._tls = ssl.create_default_context() if self._url.scheme == "https" else None
        self._answered = threading.Event()

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="openai-engine")
        try:
            return list(pool.map(self._ask, requests))
        finally:
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Nothing to give back: each request has a connection of its own."""

    def _ask(self, request: ChatRequest) -> ChatResponse:
        body = json.dumps(self._body(request)).encode()
        for attempt in range(self._retries + 1):
            started = time.monotonic()
            try:
                reply = self._post(body)
                latency_ms = (time.monotonic() - started) * 1000
                response = self._response(reply, latency_ms)
            except _Failed as failure:
                if failure.again and attempt < self._retries:
                    # Jitter, so that the requests of a batch do not all come back at once.
                    time.sleep(max(failure.after_s, self._backoff_s * 2**attempt * random.uniform(0.5, 1.0)))
                    continue
                if failure.unusable and not self._answered.is_set():
                    raise EngineError(f"{self.model} at {self.base_url} cannot be asked: {failure}") from failure
                return ChatResponse(error=str(failure))
            self._answered.set()
            return response
        raise AssertionError("the last attempt returns or raises")

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": [message.to_openai() for message in request.messages],
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "max_tokens": request.sampling.max_tokens,
            "seed": request.seed % 2**63,
        }
        if request.tools:
            body["tools"] = [{"type": "function", "function": dict(tool)} for tool in request.tools]
        return body

    def _post(self, body: bytes) -> bytes:
        """The body of a 200 answer. Raises _Failed for everything else."""
        deadline = time.monotonic() + self._timeout_s
        connection = self._connection()
        try:
            try:
                connection.connect()
            except (OSError, http.client.HTTPException) as error:
                raise _Failed(f"no connection: {error}", again=True, unusable=True) from error
            try:
                connection.request("POST", f"{self._url.path}/chat/completions", body, self._headers())
                reply = _Reply(connection.sock, method="POST")
                content = reply.read_until(connection.sock, deadline)
            except TimeoutError as error:
                raise _Failed(f"no complete answer within {self._timeout_s:g} s", again=True) from error
            except (OSError, http.client.HTTPException) as error:
                raise _Failed(f"the connection broke: {error or type(error).__name__}", again=True) from error
        finally:
            connection.close()
        if reply.status != 200:
            raise _refusal(reply, content)
        return content

    def _connection(self) -> http.client.HTTPConnection:
        assert self._url.hostname is not None
        if self._tls:
            return http.client.HTTPSConnection(
                self._url.hostname, self._port, timeout=self._timeout_s, context=self._tls
            )
        return http.client.HTTPConnection(self._url.hostname, self._port, timeout=self._timeout_s)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "flywheel"}
        return headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {})

    def _response(self, content: bytes, latency_ms: float) -> ChatResponse:
        try:
            value = json.loads(content)
            choice = value["choices"][0]
            message = choice["message"]
            text = message.get("content") or ""
            calls = tuple(_tool_call(call) for call in message.get("tool_calls") or ())
            usage = value.get("usage") or {}
            tokens_in, tokens_out = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))
            if not isinstance(text, str):
                raise TypeError("content is not text")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            shown = content[:200].decode(errors="replace")
            reason = f"the server's answer is not a chat completion ({type(error).__name__}: {error}): {shown}"
            raise _Failed(reason) from error
        return ChatResponse(
            text=text,
            tool_calls=calls,
            finish_reason=str(choice.get("finish_reason") or ""),
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            latency_ms=latency_ms,
            cost_usd=self._cost(tokens_in, tokens_out),
        )

    def _cost(self, tokens_in: int | None, tokens_out: int | None) -> float | None:
        """None when a price or a count is unknown; unknown is not free."""
        if self._price_in is None or self._price_out is None or tokens_in is None or tokens_out is None:
            return None
        return (tokens_in * self._price_in + tokens_out * self._price_out) / 1e6


def _tool_call(row: Mapping[str, Any]) -> ToolCall:
    function = row["function"]
    name, arguments = function["name"], function.get("arguments") or "{}"
    if not isinstance(name, str) or not isinstance(arguments, str | dict):
        raise TypeError("a tool call's name is text and its arguments are JSON text")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    return ToolCall(str(row.get("id") or ""), name, arguments)


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class _Reader(io.RawIOBase):
    """Reads a socket until a deadline: a socket's own timeout holds for one wait, not for a whole answer."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Reply(http.client.HTTPResponse):
    def read_until(self, sock: socket.socket, deadline: float) -> bytes:
        """Status, headers and body."""
        self.fp.close()
        self.fp = io.BufferedReader(_Reader(sock, deadline))
        self.begin()
        parts = []
        size = 0
        while part := self.read1(65536):
            parts.append(part)
            size += len(part)
            if size > BODY_LIMIT:
                raise _Failed(f"the server's answer is longer than {BODY_LIMIT // 2**20} MiB")
        return b"".join(parts)


def _refusal(reply: http.client.HTTPResponse, content: bytes) -> _Failed:
    """What a status other than 200 means for this request and for the others."""
    reason = f"the server answered {reply.status} {reply.reason}"
    if location := reply.headers.get("Location"):
        reason += f" to {location[:200]}, which is not followed; put the final address into base_url"
    elif content:
        reason += f": {content[:300].decode(errors='replace')}"
    again = reply.status in {408, 409, 425, 429} or reply.status >= 500
    unusable = reply.status in {301, 302, 303, 307, 308, 401, 403, 404, 405}
    return _Failed(reason, again, unusable, _retry_after(reply.headers.get("Retry-After", "")))


def _retry_after(value: str) -> float:
    return min(float(value), RETRY_AFTER_LIMIT_S) if value.isascii() and value.isdigit() else 0.0
