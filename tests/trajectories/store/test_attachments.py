"""One judgment, whichever way it comes: a step's is the step's, and only the root's or nobody's ends the trajectory."""

import base64
import io
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from flywheel.trajectories.annotations.feedback import give
from flywheel.trajectories.import_export.trajectory_import import import_file
from flywheel.trajectories.models import Feedback, Trajectory
from flywheel.trajectories.operations.rereads import read_again
from tests.conftest import Cast
from tests.trajectories import talking
from tests.trajectories.store.test_log_events import send, tell
from tests.trajectories.talking import TRACE, span
from tests.trajectories.telling import evaluation

ROOT, CHILD = 1, 2
TARGETS = {"root": ROOT, "child": CHILD, "whole": None}
ENDS = {"root": "failed", "child": None, "whole": "failed"}
Way = Callable[[Cast, int | None], None]


def name_of(number: int | None) -> str:
    return "" if number is None else f"{number:016x}"


def by_api(cast: Cast, number: int | None) -> None:
    given = {"trace_id": TRACE, "key": "outcome", "value": "failed"}
    give(cast.project, [given if number is None else {**given, "span_id": name_of(number)}])


def by_log(cast: Cast, number: int | None) -> None:
    tell(cast.project, [evaluation("outcome", number, label="failed")])


def by_evaluator(cast: Cast, number: int | None) -> None:
    judge = span(8, trace="d" * 32)
    judge.links.add(trace_id=bytes.fromhex(TRACE), span_id=(number or 0).to_bytes(8, "big"))
    scope = "trace." if number is None else ""
    for key, value in {"name": "outcome", "label": "failed"}.items():
        judge.attributes.add(key=f"{scope}evaluations.0.evaluation.{key}", value=talking.value(value))
    send(cast.project, [judge])


def by_langfuse(cast: Cast, number: int | None) -> None:
    said = {"traceId": TRACE, "name": "outcome", "value": "failed", "source": "API", "dataType": "CATEGORICAL"}
    put(cast, {**said, "observationId": name_of(number) or None})


def by_tensorzero(cast: Cast, number: int | None) -> None:
    kind = {"target_type": "episode"} if number is None else {}
    put(cast, {"target_id": name_of(number) or TRACE, "metric_name": "outcome", "value": False, **kind})


def put(cast: Cast, row: dict[str, Any]) -> None:
    import_file(cast.project, io.BytesIO(json.dumps(row).encode()))


APART: dict[str, Way] = {
    "api": by_api,
    "log": by_log,
    "evaluator": by_evaluator,
    "langfuse": by_langfuse,
    "tensorzero": by_tensorzero,
}
ORDERS = list(itertools.permutations(["judgment", "root", "child"]))


def can_say(way: str, target: str, order: tuple[str, ...]) -> bool:
    """TensorZero names a step alone, which has to be here; an evaluator judges the span that it links to."""
    is_whole = target == "whole"
    if way == "tensorzero":
        return is_whole or order.index(target) < order.index("judgment")
    return not (way == "evaluator" and is_whole)


CASES = [case for case in itertools.product(APART, TARGETS, ORDERS) if can_say(*case)]


@pytest.mark.parametrize(("way", "target", "order"), CASES, ids=str)
def test_what_comes_apart_means_the_same(cast: Cast, way: str, target: str, order: tuple[str, ...]) -> None:
    for what in order:
        if what == "judgment":
            APART[way](cast, TARGETS[target])
        else:
            send(cast.project, [span(ROOT) if what == "root" else span(CHILD, parent=ROOT, at_ms=1)])
    judged = Feedback.objects.get()
    assert (judged.trace_id, judged.span_id, judged.outcome) == (TRACE, name_of(TARGETS[target]), "failed")
    row = Trajectory.objects.get(trace_id=TRACE)
    assert (row.outcome, row.feedback_count) == (ENDS[target], 1)
    read_again(cast.project, row.pk)
    row.refresh_from_db()
    assert row.outcome == ENDS[target]


def judged_by_event(number: int) -> Any:
    found = span(number, parent=None if number == ROOT else ROOT)
    event = found.events.add(name="gen_ai.evaluation.result", time_unix_nano=talking.START_NS)
    for key, value in {"name": "outcome", "score.label": "failed"}.items():
        event.attributes.add(key=f"gen_ai.evaluation.{key}", value=talking.value(value))
    return found


def judged_by_annotation(number: int) -> Any:
    found = span(number, parent=None if number == ROOT else ROOT)
    for key, value in {"name": "outcome", "label": "failed"}.items():
        found.attributes.add(key=f"annotations.0.annotation.{key}", value=talking.value(value))
    return found


@pytest.mark.parametrize("first", ["judged", "other"])
@pytest.mark.parametrize("target", ["root", "child"])
@pytest.mark.parametrize("through", ["telemetry", "file"])
@pytest.mark.parametrize("way", [judged_by_event, judged_by_annotation])
def test_what_comes_in_spans_means_the_same(
    cast: Cast, way: Callable[[int], Any], through: str, target: str, first: str
) -> None:
    judged, other = way(TARGETS[target] or 0), span(CHILD if target == "root" else ROOT)
    if target == "root":
        other.parent_span_id = ROOT.to_bytes(8, "big")
    for each in (judged, other) if first == "judged" else (other, judged):
        if through == "telemetry":
            send(cast.project, [each])
        else:
            import_file(cast.project, io.BytesIO(otlp_json(each)))
    assert Feedback.objects.get().span_id == name_of(TARGETS[target])
    assert Trajectory.objects.get().outcome == ENDS[target]


def otlp_json(each: Any) -> bytes:
    row = MessageToDict(talking.request_of([each]))
    (inner,) = row["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for name in {"traceId", "spanId", "parentSpanId"} & set(inner):
        inner[name] = base64.b64decode(inner[name]).hex()
    return json.dumps(row).encode()
