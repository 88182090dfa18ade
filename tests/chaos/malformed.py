"""More than a thousand malformed bodies over real HTTP: only 2xx, 4xx and 503, good siblings kept, memory bounded."""

import base64
import gzip
import json
import random
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from tests.chaos import check
from tests.chaos.installation import Installation
from tests.chaos.sending import AGAIN, PROTOBUF, Sender, Tally
from tests.trajectories import telling
from tests.trajectories.formats.sending import as_json
from tests.trajectories.talking import episode, request_of, span, value

JSON = "application/json"
MIB = 1024 * 1024
LIMIT = 20 * MIB
MEMORY_MB = 100.0
ALLOWED = {*range(200, 300), *range(400, 500), 503}
FRAMED_TIMEOUT_S = 45.0
REPETITIVE = 1600
"""So many of the first bodies are cut or flipped somewhere; of these the short form takes every fifth."""


@dataclass
class Case:
    name: str
    body: bytes
    media_type: str = PROTOBUF
    headers: dict[str, str] = field(default_factory=dict)
    path: str = "/v1/traces"
    sibling: str = ""
    """Trace id of a good span in the same body, which must be stored."""
    wanted: frozenset[int] = frozenset()
    """Statuses, where only these are right."""


# Protobuf by hand


def tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def packed(number: int, content: bytes) -> bytes:
    return tag(number, 2) + varint(len(content)) + content


def request(*spans: bytes) -> bytes:
    """An ExportTraceServiceRequest of one scope, of spans in bytes."""
    return packed(1, packed(2, b"".join(packed(2, one) for one in spans)))


def attribute(key: str, content: bytes) -> bytes:
    """A span's attribute whose AnyValue has this content."""
    return packed(9, packed(1, key.encode()) + packed(2, content))


ODD_JSON = (
    "null",
    "7",
    '"x"',
    "[]",
    "[" * 200_000,
    '{"resourceSpans": ' * 200_000,
    '{"resourceSpans": 7}',
    '{"resourceSpans": {}}',
    '{"resourceSpans": [7, null, []]}',
    '{"resourceSpans": [{"scopeSpans": [{"spans": [null, 7, []]}]}]}',
    '{"resourceSpans": [{"resource": 7, "scopeSpans": 7}]}',
    "\ufeff{}",
    "{}{}",
    "{} x",
    "{'a': 1}",
    '{"a"',
    "NaN",
    "",
    " ",
)
ODD_LINES = (
    b'{"messages": [',
    b"\0" * 1000,
    b"[" * 100_000,
    b'{"steps": ' * 50_000,
    b"PAR1" + b"\0" * 100 + b"PAR1",
    b"PK\3\4" + b"\0" * 100,
    b"a,b\n1",
    b"\xff\xfe",
    b'{"trace_id": "\\ud800", "steps": []}',
    b"9" * 200_000,
    b'{"messages": [{"role": "user", "content": NaN}]}',
    b'{"messages": [{"role": "user", "content": "\\u0000"}]}',
)
ODD_TYPES = (
    "",
    "text/plain",
    "application/json; charset=utf-16",
    "application/x-protobuf; x",
    "a" * 4000,
    "é",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
    "application/grpc",
)


class Cases:
    """Each body that can carry one has a good sibling with a trace id of its own."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def good(self, trace: str) -> Any:
        return span(1, trace=trace, name="a good sibling")

    def trace(self) -> str:
        return self.chance.randbytes(16).hex()

    def __iter__(self) -> Iterator[Case]:
        yield from self.cut()
        yield from self.flipped()
        yield from self.wrong_wire()
        yield from self.odd_spans()
        yield from self.odd_values()
        yield from self.odd_json()
        yield from self.elsewhere()
        yield from self.compressed()
        yield from self.headers()
        yield from self.large()

    def cut(self) -> Iterator[Case]:
        """A realistic body, cut at every byte."""
        body = request_of(episode(self.trace(), calls=1)[-2:]).SerializeToString()
        for length in range(len(body)):
            yield Case(f"cut at {length}", body[:length])
        whole = json.dumps(as_json(request_of([self.good(self.trace())]))).encode()
        for length in range(0, len(whole), 3):
            yield Case(f"JSON cut at {length}", whole[:length], JSON, wanted=frozenset({400, 200}))

    def flipped(self) -> Iterator[Case]:
        body = bytes(request_of(episode(self.trace(), calls=1)[-2:]).SerializeToString())
        text = json.dumps(as_json(request_of(episode(self.trace(), calls=1)[-2:]))).encode()
        for number in range(300):
            for given, media_type in ((body, PROTOBUF), (text, JSON)):
                hurt = bytearray(given)
                for _ in range(self.chance.choice([1, 1, 2, 8])):
                    hurt[self.chance.randrange(len(hurt))] ^= 1 << self.chance.randrange(8)
                yield Case(f"flipped {number}", bytes(hurt), media_type)
        for number in range(50):
            yield Case(f"noise {number}", self.chance.randbytes(self.chance.randrange(1, 400)))

    def wrong_wire(self) -> Iterator[Case]:
        """Each field of a span with each wire type that it does not have, beside a good span."""
        contents = {0: varint(300), 1: b"\1" * 8, 2: varint(3) + b"abc", 5: b"\1" * 4, 3: b"", 4: b"", 6: b"", 7: b""}
        for number in (*range(1, 18), 1000, 536_870_911, 0):
            for wire, content in contents.items():
                trace = self.trace()
                good = self.good(trace).SerializeToString()
                odd = span(2, trace=trace).SerializeToString() + tag(number, wire) + content
                # A body that breaks in one span cannot be read on: whether its sibling is kept is not asked.
                yield Case(f"field {number} with wire type {wire}", request(good, odd))

    def odd_spans(self) -> Iterator[Case]:
        for name, trace_id, span_id in (
            ("zero trace id", b"\0" * 16, b"\1" * 8),
            ("zero span id", b"\1" * 16, b"\0" * 8),
            ("no trace id", b"", b"\1" * 8),
            ("no span id", b"\1" * 16, b""),
            ("short trace id", b"\1" * 15, b"\1" * 8),
            ("long trace id", b"\1" * 17, b"\1" * 8),
            ("short span id", b"\1" * 16, b"\1" * 7),
            ("very long span id", b"\1" * 16, b"\1" * 100_000),
            ("hex text as id", b"0" * 32, b"1" * 16),
        ):
            trace = self.trace()
            odd = span(2)
            odd.trace_id, odd.span_id = trace_id, span_id
            yield Case(name, request_of([self.good(trace), odd]).SerializeToString(), sibling=trace, wanted=OK)
        for name, change in (
            ("end before start", {"start_time_unix_nano": 2**60, "end_time_unix_nano": 1}),
            ("greatest times", {"start_time_unix_nano": 2**64 - 1, "end_time_unix_nano": 2**64 - 1}),
            ("its own parent", {"parent_span_id": (2).to_bytes(8, "big")}),
            ("odd parent id", {"parent_span_id": b"abc"}),
            ("unknown kind", {"kind": 77}),
            ("long name", {"name": "n" * 300_000}),
            ("NUL in the name", {"name": "a\0b"}),
        ):
            trace = self.trace()
            odd = span(2, trace=trace)
            for field_name, item in change.items():
                setattr(odd, field_name, item)
            yield Case(name, request_of([self.good(trace), odd]).SerializeToString(), sibling=trace, wanted=OK)

    def odd_values(self) -> Iterator[Case]:
        nan, infinite = struct.pack("<d", float("nan")), struct.pack("<d", float("inf"))
        nested, listed = packed(1, b"x"), packed(1, b"x")
        depths = {}
        for depth in range(1, 4001):
            nested = packed(6, packed(1, packed(1, b"k") + packed(2, nested)))
            listed = packed(5, packed(1, listed))
            if depth in (10, 30, 45, 64, 99, 101, 500, 4000):
                depths[f"maps {depth} deep"], depths[f"lists {depth} deep"] = nested, listed
        values = {
            "NaN": tag(4, 1) + nan,
            "infinity": tag(4, 1) + infinite,
            "greatest int": tag(3, 0) + varint(2**63 - 1),
            "least int": tag(3, 0) + varint(2**64 - 1),
            "NUL": packed(1, b"a\0b"),
            "invalid UTF-8": packed(1, b"\xff\xfe\x80"),
            "surrogate": packed(1, b"\xed\xa0\x80"),
            "overlong UTF-8": packed(1, b"\xc0\x80"),
            "bytes": packed(7, bytes(range(256))),
            "no value": b"",
            "two values": packed(1, b"x") + tag(3, 0) + varint(1),
            "unknown value": packed(99, b"x"),
            **depths,
        }
        for key in ("note", "gen_ai.usage.input_tokens", "gen_ai.input.messages", "gen_ai.response.model", "a\0b", ""):
            for name, content in values.items():
                trace = self.trace()
                odd = span(2, trace=trace, name="chat").SerializeToString() + attribute(key, content)
                body = request(self.good(trace).SerializeToString(), odd)
                yield Case(f"{name} in {key!r}", body, sibling=trace, wanted=OK)
        for key, text in (
            ("gen_ai.input.messages", "[" * 100_000),
            ("gen_ai.input.messages", '[{"role": "user", "parts": ' + "[" * 500 + "]" * 500 + "}]"),
            ("gen_ai.input.messages", '[{"role": 7, "parts": [null, 3, {"type": null}]}]'),
            ("gen_ai.tool.call.arguments", '{"n": ' + "9" * 200_000 + "}"),
            ("gen_ai.tool.call.arguments", '{"n": NaN, "m": 1e999, "s": "\\ud800", "z": "\\u0000"}'),
            ("gen_ai.usage.input_tokens", "-99999999999999999999"),
            ("gen_ai.response.finish_reasons", '"\\u0000"'),
            ("flywheel.outcome", "x" * 100_000),
        ):
            trace = self.trace()
            odd = span(2, trace=trace, name="chat")
            odd.attributes.add(key=key, value=value(text))
            body = request_of([self.good(trace), odd]).SerializeToString()
            yield Case(f"{key} is {text[:20]}", body, sibling=trace, wanted=OK)
        trace = self.trace()
        odd = span(2, trace=trace)
        for number in range(200):
            odd.attributes.add(key="same", value=value(number))
        yield Case(
            "one key 200 times", request_of([self.good(trace), odd]).SerializeToString(), sibling=trace, wanted=OK
        )

    def odd_json(self) -> Iterator[Case]:
        for name, old, new, kept in (
            ("lone surrogate", '"ODD"', r'"\ud800"', True),
            ("reversed surrogates", '"ODD"', r'"\udc00\ud800"', True),
            ("NUL", '"ODD"', r'"\u0000"', True),
            ("200 k digits as a string", '{"stringValue": "ODD"}', '{"intValue": "' + "9" * 200_000 + '"}', True),
            ("2**63 as a string", '{"stringValue": "ODD"}', '{"intValue": "9223372036854775808"}', True),
            ("an int in words", '{"stringValue": "ODD"}', '{"intValue": "seven"}', True),
            ("a float as an int", '{"stringValue": "ODD"}', '{"intValue": 1.5}', True),
            ("a huge int", '{"stringValue": "ODD"}', '{"intValue": ' + "9" * 40 + "}", True),
            ("NaN in a string", '{"stringValue": "ODD"}', '{"doubleValue": "NaN"}', True),
            ("a list for a string", '"ODD"', "[1]", True),
            ("null", '{"stringValue": "ODD"}', "null", True),
            ("a number for a value", '{"stringValue": "ODD"}', "7", True),
            ("unknown value", '{"stringValue": "ODD"}', '{"dateValue": "today"}', True),
            ("two values", '{"stringValue": "ODD"}', '{"stringValue": "a", "intValue": 3}', True),
            ("odd base64", '{"stringValue": "ODD"}', '{"bytesValue": "%%%"}', True),
            ("lists 60 deep", '{"stringValue": "ODD"}', _deep(60), True),
            ("lists 300 deep", '{"stringValue": "ODD"}', _deep(300), False),
            ("lists 100 k deep", '{"stringValue": "ODD"}', _deep(100_000), False),
            ("200 k digits", '{"stringValue": "ODD"}', '{"intValue": ' + "9" * 200_000 + "}", False),
            ("NaN", '{"stringValue": "ODD"}', '{"doubleValue": NaN}', False),
            ("-Infinity", '{"stringValue": "ODD"}', '{"doubleValue": -Infinity}', False),
            ("1e999", '{"stringValue": "ODD"}', '{"doubleValue": 1e999}', False),
            ("a trailing comma", '{"stringValue": "ODD"}', '{"stringValue": "a",}', False),
            ("a duplicate key", '{"stringValue": "ODD"}', '{"stringValue": "a", "stringValue": "b"}', True),
            ("attributes as an object", '"attributes": [{"key": "odd", "value": {"stringValue": "ODD"}}]',
             '"attributes": {"odd": "x"}', True),
        ):  # fmt: skip
            trace = self.trace()
            text = json.dumps(as_json(request_of([self.good(trace), span(2, trace=trace, odd="ODD")])))
            assert old in text, (old, text)
            yield Case(
                f"JSON with {name}",
                text.replace(old, new).encode(),
                JSON,
                sibling=trace if kept else "",
                wanted=OK if kept else frozenset({200, 400}),
            )
        for name, ids, is_kept in (
            ("base64 ids", {"traceId": base64.b64encode(b"\1" * 16).decode(), "spanId": "AQEBAQEBAQE="}, False),
            ("upper-case ids", {"traceId": "AB" * 16, "spanId": "CD" * 8}, True),
            ("no ids", {}, False),
            ("numbers as ids", {"traceId": 7, "spanId": 7}, False),
            ("ids of other digits", {"traceId": "٣" * 32, "spanId": "٣" * 16}, False),
            ("ids with spaces", {"traceId": " " + "a" * 31, "spanId": "b" * 15 + "\n"}, False),
        ):
            trace = self.trace()
            document = as_json(request_of([self.good(trace)]))
            document["resourceSpans"][0]["scopeSpans"][0]["spans"].append({"name": name, **ids})
            yield Case(f"JSON with {name}", json.dumps(document).encode(), JSON, sibling=trace, wanted=OK)
            if is_kept:
                sent = json.dumps(document).encode()
                yield Case(f"{name} are the same ids", sent, JSON, sibling=str(ids["traceId"]).lower(), wanted=OK)
        for number, text in enumerate(ODD_JSON):
            yield Case(f"odd JSON {number}", text.encode(), JSON)
        for encoding in ("utf-16", "utf-32", "latin-1"):
            yield Case(f"JSON in {encoding}", '{"resourceSpans": [], "é": 1}'.encode(encoding), JSON)

    def elsewhere(self) -> Iterator[Case]:
        """One signal sent to another's address."""
        spans, logs = request_of(episode(self.trace())), telling.logs_of(telling.said())
        for path in ("/v1/traces", "/v1/logs", "/v1/metrics"):
            for name, message in (("spans", spans), ("logs", logs)):
                yield Case(f"{name} to {path}", message.SerializeToString(), path=path)
                yield Case(f"{name} as JSON to {path}", json.dumps(as_json(message)).encode(), JSON, path=path)
        for body in (
            b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "m"}]}]}]}',
            b'{"resourceLogs": 7}',
        ):
            yield Case("another signal in JSON", body, JSON)
        logs_body = bytes(logs.SerializeToString())
        for length in range(0, len(logs_body), 4):
            yield Case(f"logs cut at {length}", logs_body[:length], path="/v1/logs")
        for number in range(60):
            hurt = bytearray(logs_body)
            hurt[self.chance.randrange(len(hurt))] ^= 1 << self.chance.randrange(8)
            yield Case(f"logs flipped {number}", bytes(hurt), path="/v1/logs")
        for number, line in enumerate(ODD_LINES):
            for media_type in (JSON, "application/octet-stream"):
                yield Case(f"import {number}", line, media_type, path="/api/v1/trajectories")
                good = (
                    b'{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]}\n'
                )
                yield Case(
                    f"import after a good line {number}", good + line + b"\n", media_type, path="/api/v1/trajectories"
                )

    def compressed(self) -> Iterator[Case]:
        def bomb(encoding: str) -> bytes:
            deflater = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
            zeros = b"\0" * MIB
            return b"".join(deflater.compress(zeros) for _ in range(1024)) + deflater.flush()

        good = bytes(request_of([self.good(self.trace())]).SerializeToString())
        for encoding in ("gzip", "deflate"):
            given = bomb(encoding)
            refused = frozenset({413, 503})
            for number in range(3):
                yield Case(f"{encoding} bomb {number}", given, headers={"Content-Encoding": encoding}, wanted=refused)
            twice = gzip.compress(given) if encoding == "gzip" else zlib.compress(given)
            yield Case(
                f"double {encoding} bomb", twice, headers={"Content-Encoding": encoding}, wanted=frozenset({400, 413})
            )
            squeezed = gzip.compress(good) if encoding == "gzip" else zlib.compress(good)
            for length in range(0, len(squeezed), 5):
                yield Case(f"{encoding} cut at {length}", squeezed[:length], headers={"Content-Encoding": encoding})
            yield Case(f"{encoding} with more behind", squeezed + b"more", headers={"Content-Encoding": encoding})
            yield Case(
                f"{encoding} that is plain", good, headers={"Content-Encoding": encoding}, wanted=frozenset({400})
            )
        yield Case("plain that is gzip", gzip.compress(good), wanted=frozenset({400}))
        for name in ("zstd", "br", "gzip, gzip", "x" * 5000, "gzip\t", "identity, gzip"):
            yield Case(
                f"encoding {name[:20]}", good, headers={"Content-Encoding": name}, wanted=frozenset({415, 400, 200})
            )
        many = b"".join(gzip.compress(b"") for _ in range(100_000))
        yield Case("100 k empty gzip members", many, headers={"Content-Encoding": "gzip"})

    def headers(self) -> Iterator[Case]:
        good = bytes(request_of([self.good(self.trace())]).SerializeToString())
        for media_type in ODD_TYPES:
            yield Case(f"type {media_type[:30]!r}", good, media_type)
        for token in ("", "Bearer", "Bearer ", "Basic eDp5", "Bearer " + "x" * 5000, "Bearer fw_\u00e9_x"):
            yield Case(f"key {token[:12]!r}", good, headers={"Authorization": token}, wanted=frozenset({400, 401, 403}))

    def large(self) -> Iterator[Case]:
        trace = self.trace()
        good = self.good(trace).SerializeToString()
        many = span(2, trace=trace).SerializeToString() + packed(9, packed(1, b"a")) * 3_000_000
        body = gzip.compress(request(good, many), 1)
        yield Case("3 M attributes", body, headers={"Content-Encoding": "gzip"}, sibling=trace, wanted=OK)
        trace = self.trace()
        text = json.dumps(as_json(request_of([self.good(trace), span(2, trace=trace)])))
        filler = text.replace('"attributes": []', '"attributes": [' + ",".join(["{}"] * 3_000_000) + "]", 2)
        yield Case("3 M attributes in JSON", gzip.compress(filler.encode(), 1), JSON, {"Content-Encoding": "gzip"})
        yield Case(
            "5 M empty spans", gzip.compress(request(*[b""] * 5_000_000), 1), headers={"Content-Encoding": "gzip"}
        )
        for extra in (0, 1):
            trace = self.trace()
            odd = span(2, trace=trace, note="n")
            sized = request_of([self.good(trace), odd]).ByteSize()
            odd.attributes[0].value.string_value = "n" * (LIMIT - sized)
            over = request_of([self.good(trace), odd]).ByteSize() - LIMIT
            odd.attributes[0].value.string_value = "n" * (LIMIT - sized - over + extra)
            body = bytes(request_of([self.good(trace), odd]).SerializeToString())
            assert len(body) == LIMIT + extra, len(body)
            headers = {"Content-Encoding": "gzip"}
            wanted = frozenset({413}) if extra else OK
            sibling = "" if extra else trace
            yield Case(f"20 MiB and {extra}", body, sibling=sibling, wanted=wanted)
            yield Case(
                f"20 MiB and {extra}, compressed",
                gzip.compress(body, 1),
                PROTOBUF,
                headers,
                sibling=sibling,
                wanted=wanted,
            )


OK = frozenset({200})


def _deep(depth: int) -> str:
    return '{"arrayValue": {"values": [' * depth + '{"stringValue": "x"}' + "]}}" * depth


# How bytes may come


def framed(trace: str) -> Iterator[tuple[str, Callable[[str], bytes], frozenset[int]]]:
    """What no client library sends: the bytes of a whole connection, by its key. 0 is for no answer at all."""
    good = bytes(request_of([span(1, trace=trace, name="a good sibling")]).SerializeToString())

    def head(key: str, *lines: str, path: str = "/v1/traces") -> bytes:
        given = [
            "Host: 127.0.0.1",
            f"Authorization: Bearer {key}",
            f"Content-Type: {PROTOBUF}",
            "Connection: close",
            *lines,
        ]
        return (
            f"POST {path} HTTP/1.1\r\n{chr(13) + chr(10)}".replace("\r\n\r\n", "\r\n").encode()
            + "".join(f"{line}\r\n" for line in given).encode("latin-1")
            + b"\r\n"
        )

    size = len(good)
    final = frozenset({400, 411, 413, 415, 501})
    yield "too short a body", lambda key: head(key, f"Content-Length: {size + 50}") + good, frozenset({400, 0})
    yield "too long a body", lambda key: head(key, f"Content-Length: {size - 5}") + good, frozenset({400, 200})
    yield "no length", lambda key: head(key) + good, frozenset({200, 400, 411})
    yield "two lengths", lambda key: head(key, f"Content-Length: {size}", "Content-Length: 1") + good, final
    yield "negative length", lambda key: head(key, "Content-Length: -1") + good, final
    yield "length in words", lambda key: head(key, "Content-Length: many") + good, final
    yield "length of 200 digits", lambda key: head(key, "Content-Length: " + "9" * 200) + good[:5], final
    yield "length of 10 GB", lambda key: head(key, "Content-Length: 10000000000") + good, final
    chunks = b"".join(b"%x\r\n%b\r\n" % (1, good[n : n + 1]) for n in range(size)) + b"0\r\n\r\n"
    chunked = "Transfer-Encoding: chunked"
    yield "chunked", lambda key: head(key, chunked) + chunks, OK
    yield "chunked and cut", lambda key: head(key, chunked) + chunks[:-20], frozenset({400, 0})
    yield "odd chunks", lambda key: head(key, chunked) + b"zz\r\nabc\r\n", frozenset({400})
    yield "a chunk of 2**64", lambda key: head(key, chunked) + b"ffffffffffffffff\r\nabc", frozenset({400, 413, 0})
    yield (
        "chunked and a length",
        lambda key: head(key, chunked, f"Content-Length: {size}") + chunks,
        frozenset({400, 200}),
    )
    yield "unknown transfer", lambda key: head(key, "Transfer-Encoding: gzip") + good, frozenset({400, 411, 501})
    yield "a header without end", lambda key: head(key, "X: " + "x" * 100_000), frozenset({400, 431, 0})
    yield "1000 headers", lambda key: head(key, *[f"X-{n}: x" for n in range(1000)]), frozenset({400, 431, 0})
    yield "a long path", lambda key: head(key, path="/v1/traces?" + "x" * 9000), frozenset({400, 414})
    yield "NUL in a header", lambda key: head(key, "X: a\0b"), frozenset({400})
    yield "no HTTP at all", lambda _: b"\x16\x03\x01\x02\x00" + b"x" * 200 + b"\r\n\r\n", frozenset({400, 0})


def exchange(port: int, data: bytes) -> int:
    """The status of what comes back for these bytes and the end of sending; 0 for nothing."""
    with socket.create_connection(("127.0.0.1", port), FRAMED_TIMEOUT_S) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it may have answered and closed already
        answer = b""
        try:
            while b"\r\n" not in answer and (more := connection.recv(4096)):
                answer += more
        except ConnectionError:
            pass
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


# The trials


def trial(installation: Installation, *, seed: int = 1, senders: int = 4, is_short: bool = False) -> dict[str, Any]:
    slug = f"malformed-{seed}"
    key = installation.make_projects([slug])[slug]
    found: list[str] = []
    _warm(installation, key)
    web = installation.pids("web process")
    before = peak = installation.rss_mb()
    watched = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not watched.wait(0.1):
            peak = max(peak, installation.rss_mb())

    sampler = threading.Thread(target=sample)
    sampler.start()
    statuses: Counter[int] = Counter()
    slowest: tuple[float, str] = (0.0, "")
    siblings: dict[str, str] = {}
    local, opened = threading.local(), list[Sender]()
    lock = threading.Lock()

    def send(case: Case) -> None:
        nonlocal slowest
        if not hasattr(local, "sender"):
            local.sender = Sender(installation.port, key, Tally(), patience_s=60)
            opened.append(local.sender)
        begun = time.monotonic()
        for _ in range(20):
            status = _status(local.sender, case)
            if status not in AGAIN or 503 in case.wanted:
                break
            time.sleep(0.5)
        took = time.monotonic() - begun
        with lock:
            statuses[status] += 1
            slowest = max(slowest, (took, case.name))
            if status not in (case.wanted or ALLOWED):
                found.append(f"{case.name}: answered with {status}")
            if case.sibling:
                siblings[case.sibling] = case.name

    with ThreadPoolExecutor(senders) as pool:
        waiting = []
        for number, case in enumerate(Cases(seed)):
            if is_short and number < REPETITIVE and number % 5:
                continue
            waiting.append(pool.submit(send, case))
            if len(waiting) >= 4 * senders:  # bodies are large: hold few of them
                waiting.pop(0).result()
        for each in waiting:
            each.result()
    for sender in opened:
        sender.close()
    trace = random.Random(seed).randbytes(16).hex()
    for name, data, wanted in framed(trace):
        status = exchange(installation.port, data(key))
        statuses[status] += 1
        if status not in wanted:
            found.append(f"{name}: answered with {status}, not {sorted(wanted)}")
    watched.set()
    sampler.join()
    _warm(installation, key)
    after = installation.rss_mb()
    if after - before > MEMORY_MB:
        found.append(f"the web processes grew from {before:.0f} to {after:.0f} MB")
    stored = {row[0] for row in installation.sql("SELECT trace_id FROM trajectories_trajectory")}
    found += [f"{name}: its good sibling is not stored" for trace, name in siblings.items() if trace not in stored]
    found += check.violations(installation)
    if web != installation.pids("web process"):
        found.append("a web process had to be started again")
    return {
        "bodies": statuses.total(),
        "answers": dict(sorted(statuses.items())),
        "good siblings": len(siblings),
        "slowest": f"{slowest[0]:.1f} s, {slowest[1]}",
        "memory MB": {"before": round(before), "peak": round(peak), "after": round(after)},
        "violations": found,
    }


def _warm(installation: Installation, key: str) -> None:
    sender = Sender(installation.port, key, Tally())
    for number in range(40):
        body = request_of(episode(f"{number + 1:032x}", calls=10)).SerializeToString()
        assert sender.deliver(bytes(body)) == 200
        # Libraries that are loaded when they are needed first are no growth.
        sender.once(b"PAR1" + b"\0" * 100 + b"PAR1", "/api/v1/trajectories", JSON)
        sender.close()


def _status(sender: Sender, case: Case) -> int:
    headers = {name.replace("-", "_"): text for name, text in case.headers.items()}
    for _ in range(2):  # a kept connection may have been closed after the last answer
        try:
            return sender.once(case.body, case.path, case.media_type, **headers)[0]
        except (OSError, HTTPException):
            continue
        except UnicodeEncodeError:
            return 400  # the client's library will not send it
    return 0


def _is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def slow(installation: Installation, *, connections: int = 64, seconds: float = 8.0) -> dict[str, Any]:
    """While that many senders dawdle with their headers, and as many with their bodies, others must be served."""
    key = installation.make_projects(["slow"])["slow"]
    findings: dict[str, Any] = {"violations": []}
    body = bytes(request_of([span(1, name="in time")]).SerializeToString())
    starts = {
        "silent": b"",
        "headers": b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        "bodies": f"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {PROTOBUF}\r\nContent-Length: 100000\r\n\r\n".encode(),
        "forms": b"POST /account/login/ HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100000\r\n\r\n",
        "silent forms": b"POST /account/login/ HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100000\r\n\r\n",
        "pipelined": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /healthz HTTP/1.1\r\nHost:",
    }
    for name, start in starts.items():
        dawdlers = [socket.create_connection(("127.0.0.1", installation.port)) for _ in range(connections)]
        for dawdler in dawdlers:
            dawdler.sendall(start)
        time.sleep(0.5)
        took, beside = list[float](), 0
        until = time.monotonic() + seconds
        sender = Sender(installation.port, key, Tally(), patience_s=60)
        while time.monotonic() < until:
            begun = time.monotonic()
            status = sender.deliver(body)
            took.append(time.monotonic() - begun)
            sender.close()  # a newcomer each time
            if status != 200:
                findings["violations"].append(f"beside slow {name} a good request was answered with {status}")
            beside = max(beside, sum(map(_is_open, dawdlers)))
            for dawdler in dawdlers if not name.startswith("silent") else ():
                try:
                    dawdler.sendall(b"a")
                except OSError:
                    continue
            time.sleep(0.2)
        for dawdler in dawdlers:
            dawdler.close()
        findings[f"{name}: slowest good answer, s"] = round(max(took), 2)
        if beside < connections // 2:
            findings["violations"].append(f"no good request was answered while more than {beside} slow {name} waited")
    return findings
