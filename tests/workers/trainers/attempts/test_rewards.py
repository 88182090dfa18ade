"""The rewards that TRL adds up are the verifier's score, whatever the completion."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.core.envs import Say, Table, Task, build
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Rollout
from flywheel.core.envs.wrappers.mixed_environment import Mixed
from flywheel.core.traces import Message, ToolCall
from flywheel.core.traces.tooling import call_text
from flywheel.core.verifiers import Verdict, guarded
from flywheel.core.verifiers.rubric import read
from tests.evals.fake import FakeEngine
from tests.workers.trainers.cast import TOOLS, task
from workers.judging import broker_line
from workers.trainers.attempts.rewards import DEAD_STEPS, NO_PENALTIES, Judge, Penalties, ProgressEval, Rewards
from workers.trainers.run.run_failures import TrainingError

COMPLETIONS = {
    "right": call_text("remind", {"who": "Ada"}),
    "wrong argument": call_text("remind", {"who": "Bo"}),
    "more arguments": call_text("remind", {"who": "Ada", "when": "now"}),
    "unknown tool": call_text("ring", {"who": "Ada"}),
    "unsafe": call_text("erase", {"who": "Ada"}),
    "broken": '{"tool": "remind"',
    "empty": "",
}
TASKS = [Task.from_json(task("Ada"))]


def attempt(answer: str | ToolCall, error: str = "") -> Rollout:
    """An attempt at the task: a text, a native call, or nothing with the reason why."""
    said = Message("assistant", "", (answer,)) if isinstance(answer, ToolCall) else Message("assistant", answer)
    asked = [Message("user", TASKS[0].prompt)]
    response = ChatResponse(text=said.content, tool_calls=said.tool_calls, error=error)
    return Rollout(TASKS[0], 0, 1, asked if error else [*asked, said], [response])


def rewards(env: Any, text: str) -> tuple[dict[str, float | None], dict[str, float]]:
    judge = Judge(env)
    worth = Rewards(judge, TASKS, 1)
    (verdict,) = judge.verdicts([attempt(text)])
    return {part: worth.value(verdict, part) for part in worth.weights}, dict(worth.weights)


@pytest.mark.parametrize("verifier", [{}, {"weights": {"exact": 3, "valid_json": 1}}])
@pytest.mark.parametrize("name", COMPLETIONS)
def test_the_sum_is_the_score(name: str, verifier: dict[str, Any]) -> None:
    judge = Judge(build("tool_call", {"tools": TOOLS}, verifier))
    worth = Rewards(judge, TASKS, 1)
    (verdict,) = judge.verdicts([attempt(COMPLETIONS[name])])
    assert worth.total(verdict) == pytest.approx(verdict.score)
    assert sum(worth.weights.values()) == pytest.approx(1)


def test_unsafe_is_worth_nothing_and_is_seen() -> None:
    values, weights = rewards(build("tool_call", {"tools": TOOLS}, {}), COMPLETIONS["unsafe"])
    assert (values.pop("unsafe"), weights["unsafe"]) == (1.0, 0.0)
    assert set(values.values()) == {0.0}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_harm_and_no_form_cost_more_than_being_wrong(name: str) -> None:
    judge = Judge(build("tool_call", {"tools": TOOLS}, {}))
    worth = Rewards(judge, TASKS, 1, Penalties(unsafe=1.0, invalid=0.5))
    (verdict,) = judge.verdicts([attempt(COMPLETIONS[name])])
    lower = {"unsafe": -1.0, "broken": -0.5, "empty": -0.5}
    assert worth.total(verdict) == pytest.approx(lower.get(name, verdict.score))


RECIPE: dict[str, Any] = {
    "kind": "reward",
    "parts": [
        {"type": "environment", "name": "task", "weight": 3},
        {"type": "regex", "name": "brief", "weight": 1, "read": "answer", "pattern": "(?s)^.{0,40}$"},
        {"type": "length", "weight": -0.5, "free": 10, "most": 20},
        {"type": "regex", "name": "named", "weight": 0.2, "shapes": True, "read": "answer", "pattern": "Ada"},
    ],
}


@pytest.mark.parametrize("tokens", [5, 15, 40])
@pytest.mark.parametrize("name", COMPLETIONS)
def test_by_a_recipe_the_sum_is_its_score_and_what_it_adds(name: str, tokens: int) -> None:
    judge = Judge(build("tool_call", {"tools": TOOLS}, {}), read(RECIPE))
    worth = Rewards(judge, TASKS, 1, Penalties(unsafe=1.0, invalid=0.5))
    asked = attempt(COMPLETIONS[name])
    asked.responses[0] = replace(asked.responses[0], tokens_out=tokens)
    (verdict,) = judge.verdicts([asked])
    (earned,) = judge.earned([asked], [verdict])
    said = COMPLETIONS[name]
    score = 0.0 if name == "unsafe" else (3 * (verdict.score or 0.0) + (len(said) <= 40)) / 4
    lower = {"unsafe": -1.0, "broken": -0.5, "empty": -0.5}.get(name, 0.0)
    shaped = -0.5 * min(1.0, max(0.0, (tokens - 10) / 10)) + 0.2 * ("Ada" in said)
    assert worth.total(earned) == pytest.approx(score + lower + shaped)
    parts = {part: worth.value(earned, part) for part in worth.weights}
    assert sum(worth.weights[part] * (value or 0.0) for part, value in parts.items()) == pytest.approx(
        score + lower + shaped
    )


def test_an_attempt_without_a_score_earns_none_by_a_recipe_either() -> None:
    judge = Judge(build("tool_call", {"tools": TOOLS}, {}), read(RECIPE))
    asked = attempt("", error="no answer")
    verdicts = judge.verdicts([asked])
    assert judge.earned([asked], verdicts) == verdicts
    assert verdicts[0].score is None


def test_in_a_mix_what_one_environment_has_no_part_for_is_taken_off_in_another() -> None:
    config = {"kind": "tool_call", "config": {"system_prompt": "", "tools": TOOLS}, "verifier": {}}
    game = {"kind": "tictactoe", "config": {}, "verifier": {}}
    env = build("mixed", {"environments": {"game": game, "calls": config}, "first": "game"}, {})
    own = replace(TASKS[0], environment="calls")
    judge = Judge(env)
    worth = Rewards(
        judge,
        [
            Task(
                "game/1", "Play.", {"best": "win"}, {"starts": "X", "random_share": 1.0, "seed": 1}, environment="game"
            ),
            own,
        ],
        1,
        Penalties(unsafe=1.0, invalid=0.5),
    )
    said = [replace(attempt(COMPLETIONS[name]), task=own) for name in ("right", "unsafe", "broken")]
    found = judge.verdicts(said)
    assert [worth.total(verdict) for verdict in found] == pytest.approx([1.0, -1.0, -0.5])
    assert {"win", "invalid", "unsafe", "exact"} <= set(worth.weights)
    assert [worth.value(verdict, "win") for verdict in found] == [None] * 3, "calls are not won"


def test_a_mix_of_which_one_environment_cannot_be_scored_is_refused_by_its_name() -> None:
    env = Mixed({"fine": Odd({"gold": GOLD}), "odd": Odd({"gold": RuntimeError("no")})})
    with pytest.raises(TrainingError, match=r"right attempts of odd can be scored: task o: .*no"):
        Rewards(Judge(env), [Task("f", "", {}, environment="fine"), Task("o", "", {}, environment="odd")], 1)


def test_a_run_from_before_there_were_penalties_has_none() -> None:
    assert Penalties.of({"steps": 3}) == NO_PENALTIES
    assert Penalties.of({"unsafe_penalty": 2.0, "invalid_penalty": 0.1}) == Penalties(2.0, 0.1)


def test_the_call_may_be_native() -> None:
    judge = Judge(build("tool_call", {"tools": TOOLS}, {}))
    (verdict,) = judge.verdicts([attempt(ToolCall("1", "remind", {"who": "Ada"}))])
    assert Rewards(judge, TASKS, 1).total(verdict) == 1.0


def test_an_answer_that_nobody_can_read_has_no_reward() -> None:
    judge = Judge(build("tool_call", {"tools": TOOLS}, {}))
    worth = Rewards(judge, TASKS, 1)
    found = judge.verdicts([attempt("", error="a tool call cannot be read"), attempt(COMPLETIONS["right"])])
    assert [worth.total(verdict) for verdict in found] == [None, 1.0]
    assert judge.unscored(found) == 0.5


class Odd:
    """An environment whose verifier says whatever a test wants."""

    max_turns = 1
    token_limit: int | None = None

    def __init__(self, verdicts: dict[str, Verdict | Exception], weights: dict[str, float] | None = None) -> None:
        self.verdicts, self.asked = verdicts, 0
        self.tools: list[dict[str, Any]] = []
        if weights:
            self.weights = weights

    def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", task.prompt)]

    def respond(self, task: Task, messages: Any, seed: int) -> list[Message]:
        return []

    def state(self, task: Task, messages: Any) -> list[Table]:
        return []

    def probes(self, task: Task) -> dict[str, Say]:
        return {}

    def solve(self, task: Task, messages: Any) -> Message:
        return Message("assistant", "gold")

    def verifier(self, task: Task) -> Any:
        def verify(trace: Any, target: Any) -> Verdict:
            self.asked += 1
            verdict = self.verdicts[trace.final().content]
            if isinstance(verdict, Exception):
                raise verdict
            return verdict

        return guarded(verify)


GOLD = Verdict(1.0, "", {"style": 1.0})


def test_a_verifier_without_weights_is_its_score() -> None:
    values, weights = rewards(Odd({"gold": GOLD, "x": Verdict(0.3, "", {"style": 0.9})}), "x")
    assert (values, weights) == ({"score": 0.3, "style": 0.9}, {"score": 1.0, "style": 0.0})


def test_not_scored_is_no_reward() -> None:
    values, _ = rewards(Odd({"gold": GOLD, "x": RuntimeError("no")}, {"style": 1.0}), "x")
    assert values == {"style": None}


def test_a_score_that_its_parts_do_not_explain() -> None:
    env = Odd({"gold": GOLD, "x": Verdict(0.5, "", {"style": 0.0})}, {"style": 1.0})
    with pytest.raises(TrainingError, match="though every weighted part is 0"):
        rewards(env, "x")


def test_what_was_asked_on_the_way_is_told_in_all_and_by_slice() -> None:
    """Eight tokens an answer; what was not scored counts in no mean."""
    events: list[dict[str, Any]] = []
    spec = SimpleNamespace(seed=1, settings={"max_completion_length": 8})
    run: Any = SimpleNamespace(spec=spec, event=lambda kind, **row: events.append({"kind": kind, **row}))
    said = {"Ada": COMPLETIONS["right"], "Bo": COMPLETIONS["broken"], "Cy": COMPLETIONS["unsafe"]}
    tasks = [replace(TASKS[0], id=name, prompt=name, slice="odd" if name == "Bo" else "even") for name in [*said, "Di"]]

    def answer(request: ChatRequest) -> ChatResponse:
        name = request.messages[-1].content
        if name not in said:
            return ChatResponse(error="nobody is there")
        return ChatResponse(text=said[name], tokens_out=8, latency_ms=50.0 if name == "Bo" else 20.0)

    env = build("tool_call", {"tools": TOOLS}, {})
    assert ProgressEval(run, env, tasks, FakeEngine(answer), event="validation", limit=8)(5) == pytest.approx(1 / 3)
    (told,) = events
    assert (told["kind"], told["n"], told["unscored"], told["tokens"], told["latency_ms"]) == (
        "validation",
        3,
        1,
        8,
        30,
    )
    assert (told["invalid"], told["parts"]["unsafe"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3)), "harm was read"
    odd, even = told["slices"]["odd"], told["slices"]["even"]
    assert (odd["n"], odd["success"], odd["invalid"], odd["latency_ms"]) == (1, 0.0, 1.0, 50.0)
    assert (even["n"], even["success"], even["invalid"], even["parts"]["unsafe"]) == (2, 0.5, 0.0, 0.5)


@pytest.mark.parametrize(("metric", "wanted"), [("score", 0.5), ("reward", 0.125)])
def test_validation_tells_the_reward_that_is_learnt_from_and_compares_by_what_is_set(
    metric: str, wanted: float
) -> None:
    """Of two environments. One attempt did harm, which costs 1 beyond its 0; all are shaped by their length."""
    events: list[dict[str, Any]] = []
    spec = SimpleNamespace(seed=1, settings={"max_completion_length": 8, "best_metric": metric})
    run: Any = SimpleNamespace(spec=spec, event=lambda _, **row: events.append(row))
    calls = {"kind": "tool_call", "config": {"system_prompt": "", "tools": TOOLS}, "verifier": {}}
    env = build("mixed", {"environments": {"mail": calls, "chat": calls}, "first": "mail"}, {})
    said = {"Ada": COMPLETIONS["right"], "Bo": COMPLETIONS["unsafe"]}
    tasks = [
        replace(TASKS[0], id=f"{where}{who}", prompt=who, environment=where, slice=who if where == "mail" else "")
        for where in ("mail", "chat")
        for who in (said if where == "mail" else ["Ada", "Bo"])
    ]
    length = {"type": "length", "weight": 0.5, "free": 4, "most": 8}
    judge = Judge(env, read({"kind": "reward", "parts": [{"type": "environment", "name": "task"}, length]}))
    rewards = Rewards(judge, tasks, 1, Penalties(unsafe=1.0))
    written = {"Ada": 6, "Bo": 4}

    def answer(request: ChatRequest) -> ChatResponse:
        name = request.messages[-1].content
        return ChatResponse(text=said[name], tokens_out=written[name])

    ask = ProgressEval(run, env, tasks, FakeEngine(answer), event="validation", limit=8, rewards=rewards)
    assert ask(5) == pytest.approx(wanted)
    (told,) = events
    assert (told["score"], told["reward"], told["rewarded"]) == (0.5, pytest.approx(0.125), 2)
    assert (told["overall"], told["overall_reward"]) == (0.5, pytest.approx(0.125))
    assert told["environments"]["chat"]["reward"] == pytest.approx(0.125)
    slices = told["slices"]
    assert (slices["Ada"]["reward"], slices["Bo"]["reward"]) == (pytest.approx(1.25), pytest.approx(-1.0))
    seconds = told["seconds"] - told["environments"]["chat"]["seconds"]
    assert slices["Ada"]["seconds"] + slices["Bo"]["seconds"] <= seconds + 0.002
    assert slices["Ada"]["seconds"] >= slices["Bo"]["seconds"]


def test_an_attempt_that_the_recipe_leaves_unscored_has_a_score_on_validation_and_no_reward() -> None:
    events: list[dict[str, Any]] = []
    spec = SimpleNamespace(seed=1, settings={"max_completion_length": 8, "best_metric": "reward"})
    run: Any = SimpleNamespace(spec=spec, event=lambda _, **row: events.append(row))
    env = build("tool_call", {"tools": TOOLS}, {})
    recipe = {"kind": "reward", "parts": [{"type": "environment"}, {"type": "exact", "read": "answer", "target": "x"}]}
    tasks = [replace(TASKS[0], id="with", target={**TASKS[0].target, "x": "y"}), replace(TASKS[0], id="without")]
    rewards = Rewards(Judge(env, read(recipe)), tasks[:1], 1)
    engine = FakeEngine(lambda _: ChatResponse(text=COMPLETIONS["right"], tokens_out=8))
    ask = ProgressEval(run, env, tasks, engine, event="validation", limit=8, rewards=rewards)
    assert ask(5) == 0.5
    assert (events[0]["n"], events[0]["score"], events[0]["rewarded"], events[0]["reward"]) == (2, 1.0, 1, 0.5)
    alone = ProgressEval(run, env, tasks[1:], engine, event="validation", limit=8, rewards=rewards)
    assert alone(5) is None, "no reward is not a reward of 0"


def test_every_attempt_is_judged_once() -> None:
    env = Odd({"gold": GOLD, "x": GOLD}, {"style": 1.0, "tone": 1.0})
    judge = Judge(env)
    for _ in range(2):
        judge.verdicts([attempt("x"), attempt("gold"), attempt("x")])
    assert env.asked == 2


def test_what_could_not_be_scored_is_judged_again_in_the_next_step() -> None:
    env = Odd({"gold": GOLD, "x": RuntimeError("too slow")})
    judge = Judge(env)
    assert [verdict.score for verdict in judge.verdicts([attempt("x"), attempt("x")])] == [None, None]
    assert env.asked == 1, "and in one step all are of one verdict"
    env.verdicts["x"] = GOLD
    assert [judge.verdicts([attempt("x")])[0].score for _ in range(2)] == [1.0, 1.0]
    assert env.asked == 2


def test_nothing_scored_step_after_step() -> None:
    judge = Judge(Odd({"gold": GOLD, "x": RuntimeError("no")}))
    for _ in range(DEAD_STEPS - 1):
        assert judge.unscored(judge.verdicts([attempt("x")])) == 1.0
    with pytest.raises(TrainingError, match="the verifier raised RuntimeError: no"):
        judge.unscored(judge.verdicts([attempt("x")]))


def test_a_verifier_that_cannot_score_the_right_attempt() -> None:
    with pytest.raises(TrainingError, match="not even right attempts"):
        Rewards(Judge(Odd({"gold": RuntimeError("no")})), TASKS, 1)


def test_a_broker_that_is_gone_ends_the_run_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(broker_line.VARIABLE, str(tmp_path / "gone"))
    part = {"type": "judge", "criteria": "x", "endpoint": "upstream", "model": "m"}
    spec = {"kind": "rubric", "parts": [part]}
    env = build("tool_call", {"tools": TOOLS}, spec, broker_line.runners())
    with pytest.raises(TrainingError, match=r"is gone .*; resume the run") as failed:
        Rewards(Judge(env), TASKS, 1)
    assert failed.value.kind == "broker"
