"""A failure at any step becomes a task that begins there, whatever its correction is; what is missing otherwise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core import envs
from flywheel.core.envs.wrappers.mixed_environment import Mixed
from flywheel.core.evidence.compared_items import item_of_task
from flywheel.core.evidence.contamination import check
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Task
from flywheel.environments.proofs.red_green_proof import failed_checks
from flywheel.environments.tasks import replay_tasks
from flywheel.environments.tasks.bulk_tasks import tasks_from_all, without_task
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.environments.tasks.retirement import retire
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Failure
from flywheel.training.datasets.dataset_builder import Speaker, demonstrations, reopened
from flywheel.trajectories.models import Step, Trajectory
from tests.conftest import TOOLS, Build, Cast
from tests.pages import page_of

FIND = {"name": "calendar.find", "parameters": {"type": "object", "properties": {"who": {"type": "string"}}}}
SCREAM = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "monday"}}
RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
LOOK = {"tool": "calendar.find", "arguments": {"who": "Bako"}}

pytestmark = pytest.mark.django_db


def call(number: int, made: dict[str, Any]) -> Message:
    return Message("assistant", "", (ToolCall(f"c{number}", made["tool"], made["arguments"]),), reasoning="Hm.")


RUN = [
    Message("system", "Be kind."),
    Message("user", "Hello"),
    Message("assistant", "Hello, what can I do?"),
    Message("user", "Meet Bako on friday, or when he is free"),
    call(1, LOOK),
    Message("tool", "free on friday", (), "c1", "calendar.find"),
    call(2, SCREAM),
    Message("tool", "created", (), "c2", "calendar.create_event"),
    Message("assistant", "You meet Bako on friday."),
]


@pytest.fixture
def replay(cast: Cast) -> Environment:
    return environment(
        project=cast.project,
        name="replay",
        actor=Actor(cast.builder),
        terms=Terms(kind="episode"),
        config={"tools": [*TOOLS, FIND]},
        verifier={"kind": "episode"},
    )


def run(build: Build, messages: Sequence[Message] = RUN, **fields: Any) -> Trajectory:
    row = build.trajectory(**fields)
    row.steps.all().delete()
    start = datetime(2026, 11, 1, tzinfo=UTC)
    for place, message in enumerate(messages):
        Step.objects.create(
            trajectory=row,
            span_id=f"s{place}",
            position=place,
            kind=message.role,
            started_at=start + timedelta(seconds=place),
            body={"output": [message.to_json()]},
        )
    return row


def failed(cast: Cast, row: Trajectory, corrected: dict[str, Any] | None, step: str = "s6") -> Failure:
    made = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", step=step)
    Failure.objects.filter(pk=made.pk).update(corrected=corrected)
    made.refresh_from_db()
    return made


def make(cast: Cast, replay: Environment, failure: Failure) -> Task:
    task, is_new = task_from(failure=failure, environment=replay, actor=Actor(cast.builder))
    assert is_new
    return task


CALL = {"type": "calls", "calls": [RIGHT], "order": "given"}


@pytest.mark.parametrize(
    ("corrected", "wanted"),
    [
        (RIGHT, [CALL]),
        ({"calls": [LOOK, RIGHT]}, [CALL | {"calls": [LOOK, RIGHT]}]),
        ({"calls": [LOOK, RIGHT], "order": "any"}, [CALL | {"calls": [LOOK, RIGHT], "order": "any"}]),
        ({"text": "He is free on friday."}, [{"type": "words", "text": "He is free on friday."}]),
        ({"refuse": ""}, [{"type": "refusal", "text": ""}]),
        ({"ask": "Which Bako?"}, [{"type": "question", "text": "Which Bako?"}]),
        ({"avoid": [], "text": ""}, [{"type": "avoid", "tools": []}]),
        (
            {"avoid": ["calendar.create_event"], "text": "He is away on friday 27."},
            [
                {"type": "avoid", "tools": ["calendar.create_event"]},
                {"type": "words", "text": "He is away on friday 27."},
            ],
        ),
    ],
)
def test_every_form_of_correction_becomes_a_proved_task(
    cast: Cast, build: Build, replay: Environment, corrected: dict[str, Any], wanted: list[dict[str, Any]]
) -> None:
    row = run(build, metadata={"state": {"people": ["Bako"]}, "slice": "free"})
    task = make(cast, replay, failed(cast, row, corrected))
    assert (task.is_proved, failed_checks(task)) == (True, [])
    assert task.target == {"wanted": wanted}
    assert (task.prompt, task.slice, task.bucket) == (RUN[3].content, "free", "wrong_arguments")
    assert [message["role"] for message in task.state["messages"]] == ["user", "assistant", "user", "assistant", "tool"]
    assert "reasoning" not in task.state["messages"][3]
    assert task.state["replies"] == [SCREAM | {"result": "created"}]
    assert task.state["world"] == {"people": ["Bako"]}


def test_a_passing_run_guards_its_calls_or_its_words(cast: Cast, build: Build, replay: Environment) -> None:
    last = decide(trajectory=run(build), actor=Actor(cast.reviewer), bucket="")
    task = make(cast, replay, last)
    assert task.target == {"wanted": [{"type": "words", "text": RUN[-1].content}]}
    middle = decide(trajectory=run(build), actor=Actor(cast.reviewer), bucket="", step="s4")
    guard = make(cast, replay, middle)
    assert guard.target["wanted"] == [CALL | {"calls": [LOOK], "order": "any"}]
    assert (task.is_proved, guard.is_proved) == (True, True)


@pytest.mark.parametrize(
    ("messages", "corrected", "step", "reason"),
    [
        (RUN, None, "s6", "no corrected action"),
        (RUN, SCREAM, "s6", "equals what the agent did"),
        (RUN, {"text": " you meet bako on friday"}, "s8", "equals what the agent did"),
        (RUN, {"avoid": [], "text": "x"}, "s1", "no request by a user"),
        (RUN[:5] + RUN[6:], RIGHT, "s5", "the call of calendar.find before the marked step has no result"),
        ([*RUN[:4], *RUN[5:]], RIGHT, "s5", "message 4 is a result of calendar.find without its call"),
        (RUN[:2], RIGHT, "", "no step is marked"),
    ],
)
def test_what_cannot_be_a_task_says_what_is_missing(
    cast: Cast,
    build: Build,
    replay: Environment,
    messages: list[Message],
    corrected: dict[str, Any] | None,
    step: str,
    reason: str,
) -> None:
    row = run(build, [messages[0], messages[2], *messages[3:]] if reason.startswith("no request") else messages)
    failure = failed(cast, row, corrected, step)
    with pytest.raises(Refused, match=reason):
        task_from(failure=failure, environment=replay, actor=Actor(cast.builder))
    assert not Task.objects.exists()


def test_a_passing_run_that_says_nothing_guards_nothing(cast: Cast, build: Build, replay: Environment) -> None:
    silent = run(build, [*RUN[:4], Message("assistant", " ")])
    decision = decide(trajectory=silent, actor=Actor(cast.reviewer), bucket="")
    with pytest.raises(Refused, match="nothing to guard"):
        task_from(failure=decision, environment=replay, actor=Actor(cast.builder))


def test_pages_show_it_and_nobody_learns_what_was_recorded_before(
    cast: Cast, build: Build, replay: Environment, sign_in: Callable[[User], Client]
) -> None:
    task = make(cast, replay, failed(cast, run(build), RIGHT))
    client = sign_in(cast.builder)
    for page in ("environment", "task"):
        number = [task.number] if page == "task" else []
        answer = client.get(reverse(f"environments:{page}", args=["acme", replay.name, *number]))
        assert "calendar.create_event" in answer.content.decode()
    env = envs.build("episode", replay.latest.config, {"kind": "episode"})
    right = envs.episode(env, core_task(task), partial(env.solve, core_task(task)))
    speaker = Speaker(env, "")
    (row,) = demonstrations(speaker, task, right, "corrected")
    assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "user", "assistant", "tool"]
    assert row["completion"][0]["tool_calls"][0]["function"]["name"] == "calendar.create_event"
    assert reopened(speaker, task, [Message("system", "Old."), *right])[-1] == right[-1]
    assert len(reopened(speaker, task, right)) == len(right)
    mixed = Mixed({"replay": envs.build("episode", {**replay.latest.config, "judged": "end"}, {"kind": "episode"})})
    mine = replace(core_task(task), environment="replay")
    assert mixed.respond(mine, [*mixed.reset(mine, 0), call(9, LOOK)], 0)[0].content == "free on friday"


def test_two_moments_of_one_run_are_two_requests_and_the_same_moment_is_one(
    cast: Cast, build: Build, replay: Environment
) -> None:
    early = make(cast, replay, failed(cast, run(build), RIGHT, "s4"))
    late = make(cast, replay, failed(cast, run(build), RIGHT, "s6"))
    again = make(cast, replay, failed(cast, run(build), {"ask": "When?"}, "s6"))

    def levels(one: Task, other: Task) -> set[str]:
        return {
            found.level for found in check([item_of_task(core_task(one))], [item_of_task(core_task(other))]).findings
        }

    assert not levels(early, late) & {"content", "request"}
    assert "request" in levels(late, again)
    again.target = late.target
    assert "content" in levels(late, again)


def test_all_that_are_labelled_become_tasks_at_once(cast: Cast, build: Build, replay: Environment) -> None:
    failed(cast, run(build), RIGHT)
    failed(cast, run(build), {"refuse": "That is against the rules."}, "s4")
    failed(cast, run(build), SCREAM)
    made = tasks_from_all(environment=replay, actor=Actor(cast.builder))
    assert (len(made.made), made.unproved) == (2, 0)
    assert list(made.refused) == ["the correction equals what the agent did at the marked step"]
    assert without_task(replay).count() == 1


TALK = [
    *RUN[:6],
    Message("assistant", "He is free on friday. Shall I book it?"),
    Message("user", "Yes, please."),
    call(2, SCREAM),
    Message("tool", "created", (), "c2", "calendar.create_event"),
    Message("assistant", "Booked on monday."),
    Message("user", "No, I meant friday."),
]


def test_a_task_keeps_what_the_user_said_later_and_not_what_corrects_the_failure(
    cast: Cast, build: Build, replay: Environment
) -> None:
    task = make(cast, replay, failed(cast, run(build, TALK), RIGHT, "s4"))
    assert (task.is_proved, failed_checks(task)) == (True, [])
    assert task.state["turns"] == [{"say": "Yes, please.", "after": TALK[6].content, "calls": [LOOK]}]
    env = envs.build("episode", {**replay.latest.config, "judged": "end"}, {"kind": "episode"})
    said = [TALK[4], Message("assistant", "Bako is free on friday, shall I book it?"), call(3, RIGHT)]
    messages = envs.episode(env, core_task(task), lambda _: said.pop(0) if said else Message("assistant", "Done."))
    assert [message.content for message in messages if message.role == "user"][-1] == "Yes, please."
    assert env.verifier(core_task(task))(Trace.from_messages("", messages), task.target).score == 1.0


def test_a_task_of_a_run_in_which_nobody_spoke_again_is_as_it_was(
    cast: Cast, build: Build, replay: Environment
) -> None:
    task = make(cast, replay, failed(cast, run(build), RIGHT))
    assert sorted(task.state) == ["messages", "replies"]


def test_a_task_of_before_turns_were_kept_stays_until_somebody_retires_it(
    cast: Cast, build: Build, replay: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = failed(cast, run(build, TALK), RIGHT, "s4")
    with monkeypatch.context() as patch:
        patch.setattr(replay_tasks, "recorded_turns", lambda *_, **__: [])
        older = make(cast, replay, failure)
    actor = Actor(cast.builder)
    assert task_from(failure=failure, environment=replay, actor=actor) == (older, False)
    older.refresh_from_db()
    assert (older.retired_at, Task.objects.count()) == (None, 1)
    retire(task=older, actor=actor, reason="it has no turns")
    newer = make(cast, replay, failure)
    assert len(newer.state["turns"]) == 1


def test_a_script_that_tells_the_answer_makes_no_proved_task(cast: Cast, build: Build, replay: Environment) -> None:
    tuesday = {"tool": RIGHT["tool"], "arguments": {"person": "Bako", "day": "tuesday"}}
    line = {"say": "On tuesday, then.", "after": "Which day suits you instead?"}
    failure = failed(cast, run(build), tuesday)

    def made(name: str, line: dict[str, str]) -> Task:
        env = environment(
            project=cast.project,
            name=name,
            actor=Actor(cast.builder),
            terms=Terms(kind="episode"),
            config={"tools": [*TOOLS, FIND], "judged": "end", "user": "script", "script": [line]},
            verifier={"kind": "episode"},
        )
        return make(cast, env, failure)

    asked = made("asked", line)
    assert (asked.is_proved, failed_checks(asked)) == (True, [])
    speaker = Speaker(envs.build("episode", asked.environment.latest.config, {"kind": "episode"}), "")
    pure = core_task(asked)
    episode = envs.episode(speaker.env, pure, partial(speaker.env.solve, pure))
    first, second, *_ = demonstrations(speaker, asked, episode, "corrected")
    assert first["completion"][0]["content"] == line["after"]
    assert second["prompt"][-1] == {"role": "user", "content": line["say"]}
    assert second["completion"][0]["tool_calls"]
    told = made("told", {"say": line["say"]})
    assert (told.is_proved, [check["name"] for check in failed_checks(told)]) == (False, ["asks without a thought"])


def test_the_page_of_a_task_shows_the_users_turns_as_the_text_that_they_are(
    cast: Cast, build: Build, replay: Environment, sign_in: Callable[[User], Client]
) -> None:
    talk = [
        *TALK[:6],
        Message("assistant", "Shall I \u202e<b>book</b>?"),
        Message("user", "<script>Yes\u202e</script>"),
    ]
    task = make(cast, replay, failed(cast, run(build, talk), RIGHT, "s4"))
    page = page_of(sign_in(cast.viewer).get(reverse("environments:task", args=["acme", replay.name, task.number])))
    turns = page[page.index("The user's turns") : page.index("Results by version")]
    assert "not used when the next action is judged" in turns
    assert "&lt;script&gt;Yes" in turns
    assert "<b>" not in turns
    assert "\u202e" not in turns
