"""The rewards that TRL adds up are the verifier's score, whatever the completion."""

from typing import Any

import pytest

from flywheel.core.envs import Say, Table, Task, build
from flywheel.core.envs.policy_rollouts import ChatResponse
from flywheel.core.traces import Message, ToolCall
from flywheel.core.traces.tooling import call_text
from flywheel.core.verifiers import Verdict, guarded
from tests.workers.trainers.cast import TOOLS, task
from workers.trainers.rewards import DEAD_STEPS, NO_PENALTIES, Judge, Penalties, reward_functions
from workers.trainers.run_failures import TrainingError

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


def as_said(task: Task, ids: Any) -> ChatResponse:
    """Read answers that are their own tokens: a text, or calls."""
    return ids if isinstance(ids, ChatResponse) else ChatResponse(text=ids)


class Logged(dict[str, float]):
    def __call__(self, name: str, value: float) -> None:
        self[name] = value


def rewards(env: Any, text: str, tasks: list[Task] | None = None) -> tuple[dict[str, float | None], dict[str, float]]:
    functions, weights = reward_functions(Judge(env, 1), tasks or TASKS, as_said)
    values = {f.__name__: f(completion_ids=[text], task=[0], log_metric=Logged())[0] for f in functions}
    return values, dict(zip(values, weights, strict=True))


@pytest.mark.parametrize("verifier", [{}, {"weights": {"exact": 3, "valid_json": 1}}])
@pytest.mark.parametrize("name", COMPLETIONS)
def test_the_sum_is_the_score(name: str, verifier: dict[str, Any]) -> None:
    env = build("tool_call", {"tools": TOOLS}, verifier)
    values, weights = rewards(env, COMPLETIONS[name])
    verdict = Judge(env, 1).verdict(TASKS[0], Message("assistant", COMPLETIONS[name]))
    assert sum(weights[part] * (value or 0.0) for part, value in values.items()) == pytest.approx(verdict.score)
    assert sum(weights.values()) == pytest.approx(1)


def test_unsafe_is_worth_nothing_and_is_seen() -> None:
    values, weights = rewards(build("tool_call", {"tools": TOOLS}, {}), COMPLETIONS["unsafe"])
    assert (values.pop("unsafe"), weights["unsafe"]) == (1.0, 0.0)
    assert set(values.values()) == {0.0}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_harm_and_no_form_cost_more_than_being_wrong(name: str) -> None:
    env = build("tool_call", {"tools": TOOLS}, {})
    functions, weights = reward_functions(Judge(env, 1), TASKS, as_said, Penalties(unsafe=1.0, invalid=0.5))
    values = [f(completion_ids=[COMPLETIONS[name]], task=[0], log_metric=Logged())[0] for f in functions]
    reward = sum(weight * (value or 0.0) for weight, value in zip(weights, values, strict=True))
    score = Judge(env, 1).verdict(TASKS[0], Message("assistant", COMPLETIONS[name])).score
    lower = {"unsafe": -1.0, "broken": -0.5, "empty": -0.5}
    assert reward == pytest.approx(lower.get(name, score))


def test_a_run_from_before_there_were_penalties_has_none() -> None:
    assert Penalties.of({"steps": 3}) == NO_PENALTIES
    assert Penalties.of({"unsafe_penalty": 2.0, "invalid_penalty": 0.1}) == Penalties(2.0, 0.1)


def test_the_call_may_be_native() -> None:
    env = build("tool_call", {"tools": TOOLS}, {})
    functions, _ = reward_functions(Judge(env, 1), TASKS, as_said)
    answer = ChatResponse(tool_calls=(ToolCall("1", "remind", {"who": "Ada"}),))
    assert {f(completion_ids=[answer], task=[0], log_metric=Logged())[0] for f in functions[:-2]} == {1.0}


def test_an_answer_that_nobody_can_read_has_no_reward() -> None:
    env = build("tool_call", {"tools": TOOLS}, {})
    functions, _ = reward_functions(Judge(env, 1), TASKS, as_said)
    answers = [ChatResponse(text="<call>", error="a tool call cannot be read"), COMPLETIONS["right"]]
    logged = Logged()
    found = [f(completion_ids=answers, task=[0, 0], log_metric=logged) for f in functions[:-2]]
    assert found == [[None, 1.0]] * len(found)
    assert logged == {"unscored": 0.5}


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


def test_every_completion_is_judged_once() -> None:
    env = Odd({"gold": GOLD, "x": GOLD}, {"style": 1.0, "tone": 1.0})
    rewards(env, "x")
    assert env.asked == 2  # the right answer, to learn the parts, and the completion


def test_what_could_not_be_scored_is_judged_again_in_the_next_step() -> None:
    env = Odd({"gold": GOLD, "x": RuntimeError("too slow")}, {"style": 1.0, "tone": 1.0})
    functions, _ = reward_functions(Judge(env, 1), TASKS, as_said)

    def step() -> list[list[float | None]]:
        return [f(completion_ids=["x"], task=[0], log_metric=Logged()) for f in functions]

    assert step() == [[None], [None]]
    assert env.asked == 2, "and in one step all parts are of one verdict"
    env.verdicts["x"] = Verdict(1.0, "", {"style": 1.0, "tone": 1.0})
    assert step() == step() == [[1.0], [1.0]]
    assert env.asked == 3


def test_nothing_scored_step_after_step() -> None:
    judge = Judge(Odd({"gold": GOLD, "x": RuntimeError("no")}), 1)
    functions, _ = reward_functions(judge, TASKS, as_said)
    logged = Logged()
    for _ in range(DEAD_STEPS - 1):
        functions[0](completion_ids=["x"], task=[0], log_metric=logged)
    assert logged == {"unscored": 1.0}
    with pytest.raises(TrainingError, match="the verifier raised RuntimeError: no"):
        functions[0](completion_ids=["x"], task=[0], log_metric=logged)


def test_a_verifier_that_cannot_score_the_right_answer() -> None:
    with pytest.raises(TrainingError, match="not even the right answers"):
        reward_functions(Judge(Odd({"gold": RuntimeError("no")}), 1), TASKS, as_said)
