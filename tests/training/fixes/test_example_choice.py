"""Examples come of corrected failures of the train split, and of nothing that is measured, however one tries."""

import pytest

from flywheel.core.traces import call_forms
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, Task, TaskSetMember
from flywheel.training.fixes.example_choice import Offer, examples_for
from tests.training.fixes.conftest import BUCKET, Desk, begun

pytestmark = pytest.mark.django_db


def offer(desk: Desk, **fields: object) -> Offer:
    return examples_for(desk.task_set, desk.parent, **{"bucket": BUCKET, **fields})  # type: ignore[arg-type]


def test_they_show_the_request_and_what_is_right(desk: Desk) -> None:
    found = offer(desk)
    assert found.examples
    assert found.pool == 12
    first = found.examples[0]
    person = first.task.prompt.split()[1]
    call = f'{{"tool": "calendar.create_event", "arguments": {{"person": "{person}", "day": "friday"}}}}'
    assert first.text == f"<example>\nUser: {first.task.prompt}\nYou: {call}\n</example>"
    assert {example.task.split for example in found.examples} == {Split.TRAIN}
    assert desk.parent.system_prompt not in found.block


def test_they_are_written_in_the_versions_form(desk: Desk) -> None:
    native = desk.build.version(form=call_forms.NATIVE)
    block = examples_for(desk.task_set, native, bucket=BUCKET).block
    assert "You call calendar.create_event with {" in block
    assert "make yours as tool calls" in block
    hermes = desk.build.version(form="hermes")
    assert "<tool_call>" in examples_for(desk.task_set, hermes, bucket=BUCKET).block


def test_the_budget_holds_and_a_seed_gives_the_same(desk: Desk) -> None:
    small, large = offer(desk, budget=120), offer(desk, budget=1000)
    assert small.tokens <= 120
    assert 0 < len(small.examples) < len(large.examples)
    assert offer(desk, budget=120).block == small.block
    assert len({offer(desk, budget=120, seed=seed).block for seed in range(6)}) > 1
    with pytest.raises(Refused, match="0 is not between 1 and"):
        offer(desk, budget=0)


def test_guards_of_successes_and_synthetic_tasks_are_no_corrected_failures(desk: Desk) -> None:
    guard = desk.task_set.tasks.filter(split=Split.TRAIN).first()
    assert guard is not None
    Task.objects.filter(pk=guard.pk).update(bucket="")
    made_up = desk.build.task(is_synthetic=True, bucket=BUCKET)
    TaskSetMember.objects.create(task_set=desk.task_set, task=made_up, split=Split.TRAIN)
    assert offer(desk).pool == 11


def test_of_a_bucket_that_has_none_they_are_of_all(desk: Desk) -> None:
    found = offer(desk, bucket="bad_planning")
    assert (found.bucket, found.pool) == ("", 12)


def only(desk: Desk) -> Task:
    """Leave one train task that could be an example."""
    first, *others = desk.task_set.tasks.filter(split=Split.TRAIN).order_by("number")
    Task.objects.filter(pk__in=[other.pk for other in others]).update(bucket="")
    return first


def test_without_anything_measured_of_it_a_task_is_shown(desk: Desk) -> None:
    task = only(desk)
    assert [example.task for example in offer(desk).examples] == [task]


def test_nothing_that_is_measured_becomes_an_example(desk: Desk) -> None:
    """Each way in which a held-out or sealed task, or its source, could reach a prompt."""
    task = only(desk)
    held_out = desk.task_set.tasks.filter(split=Split.HELD_OUT)
    held_out.update(bucket=BUCKET)
    assert [example.task for example in offer(desk).examples] == [task], "held-out tasks of the bucket"

    elsewhere = desk.build.environment("elsewhere")
    other = desk.build.task(Split.HELD_OUT, elsewhere, cluster=task.cluster)
    assert offer(desk).examples == [], "the same session is measured in another environment"
    assert offer(desk).left_out == 1
    other.delete()

    source = desk.build.trajectory()
    Task.objects.filter(pk=task.pk).update(source=source)
    other = desk.build.task(Split.SEALED, elsewhere, source=source)
    assert offer(desk).examples == [], "the same trajectory is sealed in another environment"
    other.delete()

    other = desk.build.task(Split.HELD_OUT, elsewhere, prompt=f"  {task.prompt.upper()}. ")
    assert offer(desk).examples == [], "the same request, written otherwise"
    other.delete()

    later = desk.build.task_set(train=0, held_out=1, name="later")
    TaskSetMember.objects.create(task_set=later, task=task, split=Split.HELD_OUT)
    assert offer(desk).examples == [], "another set measures with this very task"


def test_a_set_whose_splits_overlap_gives_none(desk: Desk) -> None:
    task = only(desk)
    held_out = desk.task_set.tasks.filter(split=Split.HELD_OUT).first()
    assert held_out is not None
    Task.objects.filter(pk=held_out.pk).update(cluster=task.cluster)
    with pytest.raises(Refused, match="have the same cluster"):
        offer(desk)


def test_of_runs_the_whole_beginning_is_compared_and_not_their_last_words(episodes: Desk) -> None:
    """Every task to train on ends in `Yes, please`, and so does one that is measured."""
    assert offer(episodes).pool == 6
    environment = episodes.task_set.environment_version.environment
    episodes.build.task(
        Split.HELD_OUT, environment, prompt="Yes, please", state=begun("Cancel the lunch of tomorrow", "Yes, please")
    )
    assert offer(episodes).left_out == 0
    task, *_ = offer(episodes).examples
    opening = task.task.state["messages"][0]["content"]
    other = episodes.build.task(
        Split.HELD_OUT, environment, prompt="The second one", state=begun(opening, "Which?", "The second one")
    )
    found = offer(episodes)
    assert found.left_out == 1, "the same opening is measured"
    assert opening not in found.block
    Task.objects.filter(pk=other.pk).update(prompt="Yes, please", state=begun("Hello!", "Yes, please"))
    Task.objects.filter(pk=task.task.pk).update(state=begun("  HELLO! ", "Yes, please"))
    assert offer(episodes).left_out == 1, "the same beginning, of short words"


def test_a_worlds_table_of_messages_is_no_beginning(desk: Desk) -> None:
    """In a world, messages are rows like any others."""
    chat = {"messages": [{"id": 1, "body": "Please do bring the papers along"}]}
    held_out = desk.task_set.tasks.filter(split=Split.HELD_OUT)
    held_out.update(state=chat)
    only(desk)
    desk.task_set.tasks.filter(split=Split.TRAIN).update(state=chat)
    assert len(offer(desk).examples) == 1
