"""A policy asked over the network: any server that speaks the OpenAI chat API (vLLM, SGLang, a hosted endpoint).

One request that fails is an unscored answer, after retries where they can help. A server that is full, or that went
away after it had answered, is waited for, and asked fewer things at once: it makes a run slower, not worse. When
nothing has been answered yet and the server cannot be reached, or refuses the key or the model, the policy cannot be
asked at all: EngineError.
A response is read within a total time and size, whatever the server does; redirects are not followed.
Tools are called what OpenAI takes as a name, and the calls are given back in our names.
"""

import http.client
import json
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from flywheel.core.envs.policy_rollouts import UNASKED, ChatRequest, ChatResponse, EngineError
from flywheel.core.network.http_replies import Reply, TooLong
from flywheel.core.traces import Message, ToolCall, count, openai_messages, tooling
from flywheel.core.traces.call_prices import Price

CHAT = "/chat/completions"
RETRY_AFTER_LIMIT_S = 30.0
BAD_REQUEST = 400
_TOO_LONG = re.compile(
    rb"context_length_exceeded|exceed_context_size|maximum (context|model) length|too long to fit into the model"
    rb"|model.{1,8}s context length|exceed context limit|prompt is too long",
    re.IGNORECASE,
)
"""How servers say that a conversation does not fit: OpenAI, llama.cpp, vLLM in three ways, SGLang, Anthropic in two."""
TOO_MANY, BROKEN = 429, 500
_THE_REQUESTS = {500, 501, 504, 524}
"""Of a server that broke, those that the request itself may bring about: a template that raises, an answer that takes
longer than a proxy waits."""
PAUSE_LIMIT_S = 10.0
"""Between two attempts at a server that is full."""


class Failed(Exception):
    """One attempt at a request failed. `again`: another may do better. `unusable`: no other request would. `full`: the
    server has too much to do. `away`: it cannot be reached. `lost`: it was, and is gone. `is_too_long`: the
    conversation is, for the model."""

    def __init__(
        self,
        reason: str,
        *,
        again: bool = False,
        unusable: bool = False,
        away: bool = False,
        lost: bool = False,
        after_s: float = 0.0,
        status: int = 0,
        is_too_long: bool = False,
    ) -> None:
        super().__init__(reason)
        self.again, self.unusable, self.away, self.after_s, self.status = again, unusable, away, after_s, status
        self.lost, self.is_too_long = lost, is_too_long

    @property
    def full(self) -> bool:
        return self.status in {TOO_MANY, 503}

    @property
    def is_certain(self) -> bool:
        """Whether it would have befallen any other request too. A policy could otherwise be asked anew by what it says:
        a call that the server cannot read, an answer without an end."""
        is_down = self.status == TOO_MANY or (self.status >= BROKEN and self.status not in _THE_REQUESTS)
        return self.away or self.lost or is_down


class Flow:
    """The limit of requests under way: half as many when the server is full, one more with each round that went
    well. A full server tells everybody at once, which counts as once."""

    def __init__(self, most: int) -> None:
        self.limit, self._most = float(most), most
        self._under_way, self._halved_at = 0, 0.0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < int(self.limit))
            self._under_way += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify()

    def well(self) -> None:
        with self._changed:
            self.limit = min(self._most, self.limit + 1 / self.limit)
            self._changed.notify()

    def full(self, began: float) -> None:
        """A request that began then was refused."""
        with self._changed:
            if began >= self._halved_at:
                self.limit, self._halved_at = max(1.0, self.limit / 2), time.monotonic()


@dataclass(eq=False, repr=False)
class OpenAIEngine:
    base_url: str
    """Ends where `/chat/completions` begins, usually in `/v1`."""
    model: str
    api_key: str = ""
    timeout_s: float = 120.0
    concurrency: int = 16
    price_in: float | None = None
    """Dollars per million tokens."""
    price_out: float | None = None
    price_cached: float | None = None
    """Of prompt tokens read from the server's cache; as `price_in` where it is None."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Settings of the model's chat template, as vLLM and SGLang take them."""
    retries: int = 3
    backoff_s: float = 0.5
    patience_s: float = 300.0
    """How long it may answer nobody, full or away, before it is given up."""
    on_wait: Callable[[Failed], object] | None = None
    """Told why before each pause; called from several threads."""
    is_foreign: ClassVar[bool] = True
    """Its server takes OpenAI's names and plain definitions alone; False where it shows the policy ours as they are."""

    def __post_init__(self) -> None:
        self._url = urlsplit(self.base_url.rstrip("/"))
        try:
            self._port = self._url.port
        except ValueError as error:
            raise EngineError(f"base_url {self.base_url!r}: {error}") from error
        if self._url.scheme not in {"http", "https"} or not self._url.hostname or self._url.username is not None:
            raise EngineError(f"base_url {self.base_url!r} is wrong; http://HOST:PORT/v1 or https://HOST/v1 is wanted")
        if self.concurrency < 1 or self.timeout_s <= 0:
            raise EngineError(f"concurrency {self.concurrency} and timeout_s {self.timeout_s} must be above 0")
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise EngineError("the API key holds characters that an HTTP header cannot carry")
        self._flow = Flow(self.concurrency)
        self._tls = ssl.create_default_context() if self._url.scheme == "https" else None
        self._answered, self._closed = threading.Event(), threading.Event()
        self._well_at = 0.0
        self._asking, self._lock = 0, threading.Lock()
        self._offered: tuple[Any, list[dict[str, Any]], dict[str, str]] = (), [], {}

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="openai-engine")
        with self._patience():
            try:
                return list(pool.map(self._ask, requests))
            finally:
                pool.shutdown(cancel_futures=True)

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Patience begins anew for who asks alone: among many, each would give all the others more of it."""
        with self._lock:
            self._well_at = self._well_at if self._asking else time.monotonic()
            self._asking += 1
        try:
            yield
        finally:
            with self._lock:
                self._asking -= 1

    def close(self) -> None:
        """Send nothing more. There is nothing to give back: each request has a connection of its own."""
        self._closed.set()

    def _ask(self, request: ChatRequest) -> ChatResponse:
        try:
            _, names = self._offer(request.tools)
        except ValueError as error:
            raise EngineError(f"{self.model} at {self.base_url} cannot be given these tools: {error}") from error
        try:
            reply, latency_ms = self._exchange(json.dumps(self._body(request)).encode())
            return _inside(self._response(reply, latency_ms, request.tools), names)
        except Failed as failure:
            if failure.unusable and not self._answered.is_set():
                raise EngineError(f"{self.model} at {self.base_url} cannot be asked: {failure}") from failure
            return ChatResponse(error=str(failure), is_too_long=failure.is_too_long, is_away=failure.is_certain)

    def _exchange(self, body: bytes | None, path: str = CHAT) -> tuple[bytes, float]:
        """The server's answer, after as many attempts as make sense, and how long it took; a body is posted, without
        one it is fetched. Raises Failed."""
        attempt = 0
        while True:
            began = time.monotonic()
            try:
                with self._flow:
                    if self._closed.is_set():
                        raise Failed(UNASKED)
                    began = time.monotonic()
                    content = self._send(body, path)
            except Failed as failure:
                # Jitter, so that the requests of a batch do not all come back at once.
                pause = min(PAUSE_LIMIT_S, self.backoff_s * 2**attempt * random.uniform(0.5, 1.0))
                pause = max(failure.after_s, pause)
                if failure.full or (failure.away and self._answered.is_set()):
                    self._flow.full(began)
                    if time.monotonic() + pause > self._well_at + self.patience_s:
                        raise
                elif not failure.again or attempt >= self.retries:
                    raise
                if self.on_wait is not None:
                    self.on_wait(failure)
                self._closed.wait(pause)
                attempt += 1
            else:
                self._flow.well()
                self._well_at = time.monotonic()
                self._answered.set()
                return content, (self._well_at - began) * 1000

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        messages, (tools, _) = request.messages, self._offer(request.tools)
        if self.is_foreign:
            messages = tuple(_outside(message) for message in messages)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [message.to_openai() for message in messages],
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "max_tokens": request.sampling.max_tokens,
            "seed": request.seed % 2**63,
        }
        if tools:
            body["tools"] = tools
        if self.chat_template_kwargs:
            body["chat_template_kwargs"] = dict(self.chat_template_kwargs)
        if request.schema is not None:
            schema = {"name": "answer", "strict": True, "schema": dict(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _offer(self, tools: tuple[dict[str, Any], ...]) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """The tools as the server takes them, and our names by its names. Raises ValueError where two have one name.

        Kept for the next request, since all of a run have the same.
        """
        known, shown, names = self._offered
        if known is not tools:
            names = openai_messages.names(tools) if self.is_foreign else {}
            own = (tooling.plain(tool) | {"name": openai_messages.outside(tool["name"])} for tool in tools)
            shown = [{"type": "function", "function": dict(tool)} for tool in (own if self.is_foreign else tools)]
            self._offered = tools, shown, names
        return shown, names

    def _send(self, body: bytes | None, path: str) -> bytes:
        """The body of a 200 answer. Raises Failed for everything else."""
        deadline = time.monotonic() + self.timeout_s
        connection = self._connection()
        try:
            try:
                connection.connect()
            except (OSError, http.client.HTTPException) as error:
                raise Failed(f"no connection: {error}", again=True, unusable=True, away=True) from error
            try:
                method = "GET" if body is None else "POST"
                connection.request(method, f"{self._url.path}{path}", body, self._headers())
                reply = Reply(connection.sock, method=method)
                content = reply.read_until(connection.sock, deadline)
            except TimeoutError as error:
                raise Failed(f"no complete answer within {self.timeout_s:g} s", again=True) from error
            except TooLong as error:
                raise Failed(str(error)) from error
            except (OSError, http.client.HTTPException) as error:
                problem = f"the connection broke: {error or type(error).__name__}"
                raise Failed(problem, again=True, lost=True) from error
        finally:
            connection.close()
        if reply.status != 200:
            raise _refusal(reply, content)
        return content

    def _connection(self) -> http.client.HTTPConnection:
        assert self._url.hostname is not None
        if self._tls:
            return http.client.HTTPSConnection(
                self._url.hostname, self._port, timeout=self.timeout_s, context=self._tls
            )
        return http.client.HTTPConnection(self._url.hostname, self._port, timeout=self.timeout_s)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "flywheel"}
        return headers | ({"Authorization": f"Bearer {self.api_key}"} if self.api_key else {})

    def _response(self, content: bytes, latency_ms: float, tools: tuple[dict[str, Any], ...]) -> ChatResponse:
        try:
            value = json.loads(content)
            choice = value["choices"][0]
            message = choice["message"]
            text = message.get("content") or ""
            calls = tuple(_tool_call(call) for call in message.get("tool_calls") or ())
            usage = value.get("usage") or {}
            tokens_in, tokens_out = (count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
            cached = count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
            if not isinstance(text, str):
                raise TypeError("content is not text")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            shown = content[:200].decode(errors="replace")
            reason = f"the server's answer is not a chat completion ({type(error).__name__}: {error}): {shown}"
            raise Failed(reason) from error
        return ChatResponse(
            text=text,
            tool_calls=calls,
            finish_reason=str(choice.get("finish_reason") or ""),
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            latency_ms=latency_ms,
            cost_usd=self._cost(tokens_in, tokens_out, cached),
            model=str(value.get("model") or "")[:200],
        )

    def _cost(self, tokens_in: int | None, tokens_out: int | None, cached: int | None) -> float | None:
        """None when a price or a count is unknown; unknown is not free."""
        if self.price_in is None or self.price_out is None:
            return None
        return Price(self.price_in, self.price_out, self.price_cached).cost(tokens_in, tokens_out, cached)


def _outside(message: Message) -> Message:
    """The message with its tools called as OpenAI takes it, those too that the policy made up."""
    calls = tuple(replace(call, name=openai_messages.outside(call.name)) for call in message.tool_calls)
    return replace(message, tool_calls=calls, name=openai_messages.outside(message.name))


def _inside(response: ChatResponse, names: Mapping[str, str]) -> ChatResponse:
    """The answer with its tools called as here, in a call that was written as text too."""
    calls = tuple(replace(call, name=names.get(call.name, call.name)) for call in response.tool_calls)
    return replace(response, text=_written(response.text, names) if names else response.text, tool_calls=calls)


def _written(text: str, names: Mapping[str, str]) -> str:
    call = tooling.parse_call(Message("assistant", text)).call
    if call is None or not isinstance(call.arguments, dict) or names.get(call.name, call.name) == call.name:
        return text
    return tooling.call_text(names[call.name], call.arguments)


def _tool_call(row: Mapping[str, Any]) -> ToolCall:
    function = row["function"]
    name, arguments = function["name"], function.get("arguments") or "{}"
    if not isinstance(name, str) or not isinstance(arguments, str | dict):
        raise TypeError("a tool call's name is text and its arguments are JSON text")
    return ToolCall(str(row.get("id") or ""), name, openai_messages.arguments(arguments))


def _refusal(reply: http.client.HTTPResponse, content: bytes) -> Failed:
    """Say what a status other than 200 means for this request and for the others."""
    reason = f"the server answered {reply.status} {reply.reason}"
    if location := reply.headers.get("Location"):
        reason += f" to {location[:200]}, which is not followed; put the final address into base_url"
    elif content:
        reason += f": {content[:300].decode(errors='replace')}"
    again = reply.status in {408, 409, 425, 429} or reply.status >= 500
    unusable = reply.status in {301, 302, 303, 307, 308, 401, 403, 404, 405}
    after_s = _retry_after(reply.headers.get("Retry-After", ""))
    is_too_long = reply.status == BAD_REQUEST and _TOO_LONG.search(content) is not None
    return Failed(reason, again=again, unusable=unusable, after_s=after_s, status=reply.status, is_too_long=is_too_long)


def _retry_after(value: str) -> float:
    return min(float(value), RETRY_AFTER_LIMIT_S) if value.isascii() and value.isdigit() else 0.0
