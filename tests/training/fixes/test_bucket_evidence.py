"""What a bucket's failures have in common, and whether a retrieval failure is one of the index or of the agent."""

from typing import Any

import pytest

from flywheel.core.traces import tooling
from flywheel.environments.models import Split, TaskSetMember
from flywheel.evals.models import Result
from flywheel.failures.models import Decision, Failure
from flywheel.training.fixes import bucket_evidence
from flywheel.training.fixes.bucket_evidence import evidence_of, needed_values
from flywheel.trajectories.models import Source, Step
from tests import conftest
from tests.training.fixes.conftest import BETTER, Desk, draft

TOOLS: Any = conftest.TOOLS

pytestmark = pytest.mark.django_db


def failed(desk: Desk, answer: str, corrected: Any, bucket: str = "wrong_tool", **fields: Any) -> Failure:
    source = fields.pop("trajectory_source", Source.PRODUCTION)
    trajectory = desk.build.trajectory("Meet Bako on friday", answer, agent=desk.parent.agent, source=source)
    return desk.failure(bucket, trajectory=trajectory, corrected=corrected, **fields)


def called(tool: str, **arguments: Any) -> str:
    return tooling.call_text(tool, arguments)


def wanted(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


def test_wrong_tools_and_arguments_are_counted_and_notes_are_quoted(desk: Desk) -> None:
    meeting = wanted("calendar.create_event", person="Bako", day="friday")
    for _ in range(2):
        failed(desk, called("email.send", to="Bako", subject="x"), meeting, note="Never mails for meetings.")
    failed(desk, called("calendar.create_event", person="Bako", day="monday"), meeting)
    failed(desk, "I cannot.", meeting, note="  ")
    failed(desk, called("email.send"), None)
    evidence = evidence_of(desk.cast.project, "wrong_tool", desk.parent.agent)
    assert evidence.failures == 5
    assert evidence.calls == [
        ("email.send", "calendar.create_event", 2),
        ("", "calendar.create_event", 1),
    ]
    assert evidence.arguments == [("calendar.create_event: day", 1)]
    assert evidence.notes == ["Never mails for meetings."]
    assert evidence.retrieval is None


def test_rejected_superseded_and_others_failures_are_not_read(desk: Desk) -> None:
    meeting = wanted("calendar.create_event", person="Bako", day="friday")
    failed(desk, "no", meeting, current=False)
    Failure.objects.create(
        project=desk.cast.project,
        trajectory=desk.build.trajectory(agent=desk.parent.agent),
        decision=Decision.REJECTED,
        labelled_by=desk.cast.reviewer,
    )
    other = desk.build.trajectory(agent=desk.build.agent("other"))
    desk.failure("wrong_tool", trajectory=other, corrected=meeting)
    assert evidence_of(desk.cast.project, "wrong_tool", desk.parent.agent).failures == 0
    assert evidence_of(desk.cast.project, "wrong_tool").failures == 1


def read(failure: Failure, text: str) -> None:
    """Put what a tool answered before the agent's last words."""
    failure.trajectory.steps.filter(position=2).update(position=9)
    Step.objects.create(
        trajectory=failure.trajectory, span_id="t", position=2, kind="tool", body={"result": text}, tool_name="search"
    )


def test_a_value_that_was_never_read_is_told_apart_from_one_that_was(desk: Desk) -> None:
    absent, there, user = (
        failed(desk, "no", wanted("email.send", to=who, subject="Re"), "retrieval_failure")
        for who in ("kofi@acme.test", "ada@acme.test", "Bako")
    )
    read(absent, "kofi2@acme.test, xkofi@acme.test")
    read(there, "found: ADA@acme.test; subject re")
    failed(desk, "no", {"refuse": ""}, "retrieval_failure")
    for failure in (absent, user):
        assert failure.corrected
        failure.corrected["arguments"]["subject"] = "friday"
        failure.save()
    retrieval = evidence_of(desk.cast.project, "retrieval_failure", desk.parent.agent).retrieval
    assert retrieval is not None
    missing = {row.failure.pk: row.missing for row in retrieval.rows}
    assert missing == {absent.pk: ["kofi@acme.test"], there.pk: [], user.pk: []}
    assert (retrieval.absent, retrieval.checked, retrieval.unknown) == (1, 3, 1)
    assert retrieval.words == (
        "In 1 of 3 failures the needed value was never in the context; in the other 2 a prompt or examples can help."
    )
    Failure.objects.filter(pk__in=[there.pk, user.pk]).delete()
    retrieval = evidence_of(desk.cast.project, "retrieval_failure", desk.parent.agent).retrieval
    assert retrieval is not None
    assert retrieval.words.endswith("no prompt can supply it there. Fix the queries, the index or the search tool.")


@pytest.mark.parametrize(
    ("corrected", "values"),
    [
        (wanted("calendar.create_event", person="Bako", day="friday"), ["Bako"]),
        (wanted("email.send", to="a", subject="long " * 20), ["a"]),
        (wanted("x", id=12, deep={"of": ["b", True, None]}), ["12", "b"]),
        ({"text": "Your order A-17 costs 12.50, Bako"}, ["A-17", "12.50"]),
        ({"avoid": [], "text": "Ask me later"}, []),
        ({"text": "Write to ada@acme.test, or (kofi+x@acme.test)."}, ["ada@acme.test", "kofi+x@acme.test"]),
        ({}, []),
    ],
)
def test_values_are_those_that_must_have_been_found(corrected: dict[str, Any], values: list[str]) -> None:
    assert needed_values(corrected, TOOLS) == values


def test_a_text_of_any_length_is_read_in_one_go_and_as_far_as_a_bound() -> None:
    """Each pass over a long word without digits once began at every letter of it."""
    assert needed_values({"text": "a." * 1_000_000}, TOOLS) == []
    long = "b" * bucket_evidence.MOST_WORDS
    assert needed_values({"text": f"A-17 {long} B-18"}, TOOLS) == ["A-17"]
    many = " ".join(f"A-{number}" for number in range(500))
    assert len(needed_values({"text": many}, TOOLS)) == bucket_evidence.MOST_VALUES


def test_failures_of_what_is_measured_are_left_out_and_said_to_be(desk: Desk) -> None:
    meeting = wanted("calendar.create_event", person="Bako", day="friday")
    failed(desk, called("email.send"), meeting, note="Seen in use.")
    held_out, practised = (desk.task_set.tasks.filter(split=split).first() for split in (Split.HELD_OUT, Split.TRAIN))
    assert held_out
    assert practised
    run = desk.start(draft("names", BETTER)).parent_eval
    attempts = [
        failed(desk, called("secret.one"), wanted("secret.two"), note="A secret.", bucket=bucket)
        for bucket in ("wrong_tool", "wrong_tool", "retrieval_failure")
    ]
    for failure, task in zip(attempts, [held_out, practised, held_out], strict=True):
        sample = failure.pk % 30_000
        Result.objects.create(run=run, task=task, sample=sample, seed=1, trajectory=failure.trajectory)
    source = failed(desk, called("secret.one"), wanted("secret.two", x="S-1"), note="Another secret.")
    desk.build.task(Split.SEALED, source=source.trajectory)
    session = failed(desk, called("secret.one"), wanted("secret.two"), note="The same session.")
    desk.build.task(Split.HELD_OUT, cluster=session.trajectory.cluster)
    failed(desk, called("secret.one"), wanted("secret.two"), trajectory_source=Source.ROLLOUT, note="From elsewhere.")

    evidence = evidence_of(desk.cast.project, "wrong_tool")
    assert evidence.failures == 2, "one in use, one at a task to train on"
    assert evidence.notes == ["A secret.", "Seen in use."]
    assert (evidence.attempts_left_out, evidence.sources_left_out) == (2, 2)
    assert evidence.left_out == (
        "Left out: 2 attempts at held-out or sealed tasks and 2 of a session that a held-out or sealed task was made "
        "of. A draft that knew of them would be measured by what it knows."
    )
    later = desk.build.task_set(train=0, held_out=1, name="later")
    TaskSetMember.objects.create(task_set=later, task=practised, split=Split.HELD_OUT)
    assert evidence_of(desk.cast.project, "wrong_tool").notes == ["Seen in use."], "another set measures with it"
    retrieval = evidence_of(desk.cast.project, "retrieval_failure")
    assert retrieval.retrieval is not None
    assert (retrieval.failures, retrieval.retrieval.rows, retrieval.attempts_left_out) == (0, [], 1)
