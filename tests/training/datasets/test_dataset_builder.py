"""What a run may learn from: rows of the train split alone, named by their content."""

import hashlib
import json
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, transaction

from flywheel.accounts.actors import Actor
from flywheel.core.envs.replay.episode_replay import ERROR, MARK
from flywheel.core.traces import Message, ToolCall
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment
from flywheel.training.datasets.dataset_builder import Speaker, build, demonstrations, draft, open_rows, solved, unfit
from flywheel.training.models import Dataset
from flywheel.trajectories.models import Step
from tests.conftest import TOOLS
from tests.environments.tasks import test_replay_tasks as replay_tasks
from tests.environments.tasks.test_replay_tasks import FIND, failed, run
from tests.training.conftest import WRONG, Room, right

pytestmark = pytest.mark.django_db


def made(room: Room, kind: str = "sft", **fields: Any) -> Dataset:
    return build(name="mail", kind=kind, task_set=room.task_set, actor=Actor(room.cast.trainer), **fields)


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    with open_rows(dataset) as file:
        return [json.loads(line) for line in file]


def spoken(task: Task, sample: int) -> str:
    """Even samples say the right thing in other words than the correction, odd ones a wrong thing."""
    return right(task).replace(": ", ":  ") if sample % 2 == 0 else WRONG


@pytest.mark.parametrize("kind", ["sft", "pairs", "tasks", "thumbs", "scored"])
def test_held_out_tasks_are_in_no_row(room: Room, kind: str) -> None:
    rollouts = room.evaluated(spoken, split=Split.TRAIN)
    held_out = {str(task) for task in room.task_set.tasks.filter(split=Split.HELD_OUT)}
    clusters = set(room.task_set.tasks.filter(split=Split.HELD_OUT).values_list("cluster", flat=True))
    for row in rows(made(room, kind, rollouts=rollouts)):
        assert row.get("task_id", row.get("id")) not in held_out
        assert row["cluster"] not in clusters


def test_a_cluster_in_both_splits_is_refused(room: Room) -> None:
    train = room.task_set.tasks.filter(split=Split.TRAIN).earliest("number")
    room.task_set.tasks.filter(split=Split.HELD_OUT).update(cluster=train.cluster)
    with pytest.raises(Refused, match=r"held-out.*train.*same cluster"):
        made(room)
    assert not Dataset.objects.exists()


def test_a_prompt_in_both_splits_is_refused_however_it_is_written(room: Room) -> None:
    train = room.task_set.tasks.filter(split=Split.TRAIN).earliest("number")
    room.task_set.tasks.filter(split=Split.HELD_OUT).update(prompt=f"  {train.prompt.upper()} ")
    with pytest.raises(Refused, match="same prompt"):
        made(room)


def test_it_is_named_by_the_digest_of_its_file(room: Room) -> None:
    dataset = made(room)
    with open_rows(dataset) as file:
        assert hashlib.sha256(file.read()).hexdigest() == dataset.digest
    assert (str(dataset), dataset.rows) == ("mail@1", 6)


def test_the_same_rows_are_the_same_dataset_and_others_the_next_version(room: Room) -> None:
    first = made(room)
    assert made(room) == first
    assert str(made(room, rollouts=room.evaluated(spoken, split=Split.TRAIN))) == "mail@2"


def test_passing_attempts_are_imitated_once_and_failing_ones_never(room: Room) -> None:
    rollouts = room.evaluated(spoken, split=Split.TRAIN, samples=4, success=(True, False))
    dataset = made(room, rollouts=rollouts)
    answers = [row["completion"][0]["content"] for row in rows(dataset)]
    wanted = {"tasks": 6, "from_failures": 6, "from_rollouts": 6, "eval_run": rollouts.pk, "duplicates": 0}
    assert {name: dataset.recipe[name] for name in wanted} == wanted
    assert len(answers) == 12
    assert WRONG not in answers


def test_an_attempt_that_repeats_the_correction_adds_nothing(room: Room) -> None:
    dataset = made(room, rollouts=room.evaluated(lambda task, _: right(task), split=Split.TRAIN))
    assert [row["origin"] for row in rows(dataset)] == ["corrected"] * 6
    assert dataset.recipe["from_rollouts"] == 0


def test_unscored_attempts_teach_nothing(room: Room) -> None:
    unscored = room.evaluated(spoken, split=Split.TRAIN, success=(None,))
    assert made(room, rollouts=unscored).recipe["from_rollouts"] == 0


def test_a_success_that_is_guarded_is_no_corrected_failure(room: Room) -> None:
    room.task_set.tasks.filter(split=Split.TRAIN).update(bucket="")
    dataset = made(room)
    assert dataset.recipe["from_failures"] == 0
    assert {row["origin"] for row in rows(dataset)} == {"success"}


def test_a_guarded_success_is_imitated_word_for_word(room: Room) -> None:
    for task in room.task_set.tasks.filter(split=Split.TRAIN):
        task.bucket, said = "", right(task).replace(": ", " :  ")
        task.proof = {"recorded": {"role": "assistant", "content": said}, "is_failure": False}
        task.save()
    assert all(" :  " in row["completion"][0]["content"] for row in rows(made(room)))


def test_arguments_are_written_in_the_order_of_the_tool_and_not_of_the_database(room: Room) -> None:
    for row in rows(made(room)):
        assert list(json.loads(row["completion"][0]["content"])["arguments"]) == ["person", "day"]


def test_pairs_set_the_right_answer_against_what_was_said(room: Room) -> None:
    task = room.task_set.tasks.filter(split=Split.TRAIN).earliest("number")
    source = room.build.trajectory(task.prompt, WRONG)
    later = {"output": [{"role": "assistant", "content": "Done."}]}
    Step.objects.create(trajectory=source, span_id="s3", position=3, kind="assistant", body=later)
    marked = {"recorded": {"role": "assistant", "content": WRONG}, "is_failure": True}
    Task.objects.filter(pk=task.pk).update(source=source, proof=marked)
    (row,) = rows(made(room, "pairs"))
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"]) == (right(task), WRONG), "the step marked"
    assert row["origin"] == "failure"
    pairs = rows(made(room, "pairs", rollouts=room.evaluated(spoken, split=Split.TRAIN)))
    assert sorted(row["origin"] for row in pairs) == ["failure"] + ["rollout"] * 5


def test_thumbs_are_what_is_imitated_and_what_was_said_where_it_went_wrong(room: Room) -> None:
    task = room.task_set.tasks.filter(split=Split.TRAIN).earliest("number")
    marked = {"recorded": {"role": "assistant", "content": WRONG}, "is_failure": True}
    Task.objects.filter(pk=task.pk).update(source=room.build.trajectory(task.prompt, WRONG), proof=marked)
    dataset = made(room, "thumbs")
    assert dataset.recipe["thumbs"] == {"true": 6, "false": 1}
    (bad,) = (row for row in rows(dataset) if not row["label"])
    assert (bad["task_id"], bad["completion"][0]["content"], bad["origin"]) == (str(task), WRONG, "failure")
    assert [message["role"] for message in bad["prompt"]] == ["system", "user"]
    evaluated = made(room, "thumbs", rollouts=room.evaluated(spoken, split=Split.TRAIN))
    assert evaluated.recipe["thumbs"] == {"true": 12, "false": 6}
    assert evaluated.is_chosen_by_reward


def test_answers_that_all_have_the_same_thumb_are_refused(room: Room) -> None:
    with pytest.raises(Refused, match="has 6 good answers and no bad one, and KTO needs both; add failures"):
        made(room, "thumbs")


def test_scored_attempts_are_those_of_an_eval_good_and_bad(room: Room) -> None:
    with pytest.raises(Refused, match="name an evaluation of the train tasks of") as refused:
        made(room, "scored")
    assert refused.value.field == "rollouts"
    rollouts = room.evaluated(spoken, split=Split.TRAIN)
    dataset = made(room, "scored", rollouts=rollouts)
    scores = {"attempts": 12, "groups": 6, "telling": 6, "least": 0.0, "most": 1.0}
    assert dataset.recipe["scores"] == {**scores, "answers": 12, "recorded": 0}
    assert dataset.is_chosen_by_reward, "so the reward needs its audit"
    found = rows(dataset)
    task = room.task_set.tasks.filter(split=Split.TRAIN).earliest("number")
    own = [(row["score"], row["completion"][0]["content"]) for row in found if row["group"] == str(task)]
    assert own == [(1.0, spoken(task, 0)), (0.0, WRONG)]
    assert len({row["attempt"] for row in found}) == 12
    with pytest.raises(Refused, match="has 6 attempts that all score 1, and AWR learns from the difference"):
        made(room, "scored", rollouts=room.evaluated(spoken, split=Split.TRAIN, samples=1))
    with pytest.raises(Refused, match="no audit has shown to be right"):
        room.launch(algorithm="awr", dataset=dataset)


def calls_of(message: dict[str, Any]) -> list[str]:
    return [call["function"]["name"] for call in message.get("tool_calls", ())]


def test_a_native_agent_is_taught_native_calls_and_told_its_tools(room: Room) -> None:
    native = room.build.version(form="native", system_prompt="You call tools.")
    task = room.task_set.tasks.filter(split=Split.TRAIN).earliest("number")
    said = Message("assistant", "", (ToolCall("c-1", "email.send", {"to": "Bako", "subject": "friday"}),))
    Task.objects.filter(pk=task.pk).update(
        source=room.build.trajectory(task.prompt, WRONG), proof={"recorded": said.to_json(), "is_failure": True}
    )
    for row in rows(made(room, version=native)):
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        assert row["prompt"][0]["content"] == "You call tools."
        assert calls_of(row["completion"][0]) == ["calendar.create_event"]
        assert [tool["function"]["name"] for tool in row["tools"]] == [tool["name"] for tool in native.tools]
    (pair,) = rows(made(room, "pairs", version=native))
    assert calls_of(pair["chosen"][0]) == ["calendar.create_event"]
    assert calls_of(pair["rejected"][0]) == ["email.send"]
    rollouts = room.evaluated(spoken, split=Split.TRAIN)
    written = rows(made(room, version=native, rollouts=rollouts))
    assert all(calls_of(row["completion"][0]) for row in written), "what was once said as text, too"


def test_a_dataset_says_for_whom_it_is_written(room: Room) -> None:
    dataset = made(room, version=room.base)
    assert dataset.recipe["version"] == str(room.base)
    assert unfit(dataset, room.base) == ""
    other = room.build.version(system_prompt="Another.")
    assert unfit(dataset, other) == (
        f"{dataset} is written for {room.base}, whose prompt, tools or form of calls are not those of {other}"
    )
    assert unfit(made(room, "tasks", version=room.base), other) == "", "a task opens with whoever practises it"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"split": Split.HELD_OUT}, "not a run on the train split"),
        ({"split": Split.TRAIN, "state": "running"}, "is running"),
    ],
)
def test_only_finished_runs_on_the_train_split_give_rollouts(room: Room, fields: Any, problem: str) -> None:
    with pytest.raises(Refused, match=problem) as refused:
        made(room, rollouts=room.evaluated(spoken, **fields))
    assert refused.value.field == "rollouts"


@pytest.mark.parametrize(("name", "kind", "field"), [("Bad Name", "sft", "name"), ("mail", "poems", "kind")])
def test_what_is_wrong_is_named(room: Room, name: str, kind: str, field: str) -> None:
    with pytest.raises(Refused) as refused:
        build(name=name, kind=kind, task_set=room.task_set, actor=Actor(room.cast.trainer))
    assert refused.value.field == field


def test_no_rows_say_what_to_do(room: Room) -> None:
    with pytest.raises(Refused, match="gives no preference pairs"):
        draft(kind="pairs", task_set=room.task_set)


def test_a_file_that_a_crash_left_half_written_is_written_again(room: Room) -> None:
    dataset = made(room)
    path = settings.HOME / "artifacts" / dataset.file
    path.write_bytes(path.read_bytes()[:20])
    assert made(room) == dataset
    assert len(rows(dataset)) == 6


def test_it_never_changes(room: Room) -> None:
    dataset = made(room)
    with pytest.raises(DatabaseError), transaction.atomic():
        Dataset.objects.filter(pk=dataset.pk).update(rows=1)


FUNCTION = '''
def reset(seed: int) -> dict:
    return {}

def find(state: dict, who: str) -> str:
    """Find somebody."""
    return "free"
'''


@pytest.mark.parametrize(
    "settings",
    [
        {"unknown": "python", "source": 'NAMES = {"find": "calendar.find"}\n' + FUNCTION},
        {"unknown": "model", "simulator": {"endpoint": "upstream", "model": "m"}},
        {"unknown": "server", "server": {"base_url": "http://tools:8000"}},
    ],
)
def test_rows_of_a_replay_ask_nobody_who_stands_in_for_its_tools(room: Room, settings: dict[str, Any]) -> None:
    room.cast.project.upstream = {"base_url": "http://localhost:9", "api_key_env": ""}
    room.cast.project.save()
    config = {"tools": [*TOOLS, FIND], "judged": "end", **settings}
    terms, actor = Terms(kind="episode", held_out_share=0.5), Actor(room.cast.builder)
    row = environment(
        project=room.cast.project, name="re", actor=actor, terms=terms, config=config, verifier={"kind": "episode"}
    )
    wanted = {"tool": "calendar.find", "arguments": {"who": "Ada"}}
    task = replay_tasks.make(room.cast, row, failed(room.cast, run(room.build), wanted))
    speaker = Speaker.of(TaskSet(environment_version=row.latest), room.base)
    found = list(demonstrations(speaker, task, solved(speaker, task), "corrected"))
    assert len(found) == 2
    told = {said["content"] for one in found for said in one["prompt"] if said.get("name") == "calendar.find"}
    assert told <= {"free on friday", MARK + ERROR}
    assert MARK + ERROR in told
