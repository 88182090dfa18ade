"""A request that would take far more memory than its bytes is refused, in part or as a whole, before it is read."""

import pytest

from flywheel.trajectories.formats.otlp import otlp_logs, request_bounds
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.formats.values.hostile_json import FormatError
from tests.trajectories.talking import request_of, span


def packed(number: int, content: bytes) -> bytes:
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def request(*spans: bytes) -> bytes:
    return packed(1, packed(2, b"".join(packed(2, one) for one in spans)))


def test_a_span_of_too_many_attributes_is_rejected_and_its_sibling_kept() -> None:
    good = span(1).SerializeToString()
    crowded = span(2).SerializeToString() + packed(9, packed(1, b"a")) * 500_000
    decoded = otlp_traces.decode(request(good, crowded), otlp_traces.PROTOBUF)
    assert [one.span_id for one in decoded.spans] == [(1).to_bytes(8, "big").hex()]
    assert [(item.index, item.content) for item in decoded.rejected] == [(1, b"")]
    assert "10000 attributes" in decoded.rejected[0].reason


@pytest.mark.parametrize("count", [request_bounds.SPANS + 1, 1_100_000])
def test_a_request_of_too_many_spans_is_refused(count: int) -> None:
    with pytest.raises(FormatError, match="more than 50000 spans"):
        otlp_traces.decode(request(*[b""] * count), otlp_traces.PROTOBUF)


def test_json_of_too_many_values_is_refused() -> None:
    body = b'{"resourceSpans": [' + b"{}," * 700_000 + b"{}]}"
    for read in (otlp_traces.decode, otlp_logs.decode):
        with pytest.raises(FormatError, match="more than 1000000 values"):
            read(body, otlp_traces.JSON)


def test_log_records_are_bounded_too() -> None:
    with pytest.raises(FormatError, match="smaller batches"):
        otlp_logs.decode(request(*[b""] * 1_100_000), otlp_traces.PROTOBUF)


def test_a_large_request_of_large_spans_is_read_as_ever() -> None:
    body = request_of([span(number, note="n" * 1_000_000) for number in range(1, 6)]).SerializeToString()
    assert len(body) > request_bounds.LOOKED_AT
    assert len(otlp_traces.decode(body, otlp_traces.PROTOBUF).spans) == 5


def test_what_is_kept_of_rejected_spans_is_bounded() -> None:
    """Each holds the whole resource, so that a large one would be kept as often as there are bad spans."""
    sent = request_of([span(1)])
    sent.resource_spans[0].resource.attributes.add(key="large").value.string_value = "r" * 1_000_000
    for _ in range(50):
        sent.resource_spans[0].scope_spans[0].spans.add(name="bad")
    bodies = {otlp_traces.PROTOBUF: sent.SerializeToString()}
    for media_type, body in bodies.items():
        decoded = otlp_traces.decode(body, media_type)
        assert len(decoded.rejected) == 50
        assert sum(len(item.content) for item in decoded.rejected) < request_bounds.CONTENTS + 1_100_000


def test_what_is_no_protobuf_does_not_stop_the_counting() -> None:
    for noise in (b"\xff" * 3_000_000, b"\x0a" * 3_000_000, b"\x07" * 3_000_000, b"\x08\xff" * 1_500_000):
        request_bounds.is_crowded(noise)
        with pytest.raises(FormatError):
            otlp_traces.decode(noise, otlp_traces.PROTOBUF)
