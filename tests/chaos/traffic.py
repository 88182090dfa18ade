"""What the clients send: episodes cut into requests, out of order, with updates, large values, bad spans and logs."""

import random
from dataclasses import dataclass, field

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.trajectories import telling
from tests.trajectories.talking import body_of, episode, span

LARGE = 70_000


@dataclass
class Request:
    body: bytes
    path: str = "/v1/traces"
    spans: list[tuple[str, str]] = field(default_factory=list)
    """(trace id, span id) of those that are good."""
    events: list[tuple[str, str, str]] = field(default_factory=list)


def requests(chance: random.Random, episodes: int = 6) -> list[Request]:
    """The requests of some episodes, shuffled: children before parents, one span in several requests, logs before."""
    parts: list[list[Span]] = []
    made: list[Request] = []
    for _ in range(episodes):
        trace = chance.randbytes(16).hex()
        spans = episode(trace, calls=chance.randrange(1, 5), request=f"Where is order {chance.randrange(10**6)}?")
        root = span(1, took_ms=None, trace=trace, name="invoke_agent support", gen_ai__operation__name="invoke_agent")
        spans.append(root)  # as an exporter sends it that also tells of what has only begun
        if chance.random() < 0.2:
            spans.append(span(90, parent=1, at_ms=3, trace=trace, name="GET /orders", note="n" * LARGE))
        if chance.random() < 0.3:
            spans.append(span(91, at_ms=chance.choice([-(10**10), 10**11]), trace=trace, name="far away"))
        chance.shuffle(spans)
        cut = chance.randrange(1, len(spans))
        parts += [spans[:cut], spans[cut:]]
        if chance.random() < 0.4:
            records = telling.said(span=chance.choice([10, 12]))
            for record in records:
                record.trace_id = bytes.fromhex(trace)
            events = [(trace, record.span_id.hex(), record.event_name) for record in records]
            made.append(Request(telling.body_of(records), "/v1/logs", events=events))
        if chance.random() < 0.3:
            judged = telling.evaluation("relevance", span=chance.choice([1, 10]), value=chance.random())
            judged.trace_id = bytes.fromhex(trace)
            made.append(
                Request(
                    telling.body_of([judged]), "/v1/logs", events=[(trace, judged.span_id.hex(), judged.event_name)]
                )
            )
    chance.shuffle(parts)
    while parts:
        together = [one for part in parts[:3] for one in part]
        del parts[:3]
        good = [(one.trace_id.hex(), one.span_id.hex()) for one in together]
        if chance.random() < 0.1:
            bad = span(7)
            bad.trace_id = b"short"
            together.append(bad)
        made.append(Request(body_of(together), spans=good))
    chance.shuffle(made)
    return made
