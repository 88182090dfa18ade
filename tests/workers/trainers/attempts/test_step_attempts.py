"""Whole episodes in training: judged as one, masked, replaced where they teach nothing, the same after a stop."""

import copy
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerCallback

from flywheel.core import recipes
from flywheel.core.envs import Environment, Task, build
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Rollout
from flywheel.core.envs.tictactoe import generate
from flywheel.core.traces import Message
from flywheel.core.verifiers import Runners, Verdict
from tests.workers.trainers.cast import NAMES, TOOLS, Make, Start, owned, slow, task
from workers.sandbox.outcome import Limits
from workers.trainers.attempts.curriculum import Curriculum
from workers.trainers.attempts.live_engine import TURN_BITS, Episode
from workers.trainers.attempts.rewards import Judge, Rewards
from workers.trainers.attempts.step_attempts import ALIKE, Attempts, Group, repetition
from workers.trainers.run import run_spec
from workers.trainers.run.kept_attempts import Keeper, Kept, read, waiting
from workers.worlds import world_sessions
from workers.worlds.world_sessions import Worlds

CONFIG = {"tools": TOOLS, "judged": "end", "max_turns": 3, "unknown": "stub"}
EPISODES = {"kind": "episode", "config": CONFIG, "verifier": {"kind": "episode"}}
GAMES = {"kind": "tictactoe", "config": {"system_prompt": "Play.", "max_turns": 5}, "verifier": {"kind": "tictactoe"}}


def played(name: str) -> dict[str, Any]:
    """A reminder to be given once, and then no more: whoever calls again is worth a half or a third."""
    call = {"tool": "remind", "arguments": {"who": name}}
    begun = [Message("user", f"remind {name}").to_json()]
    return task(
        name,
        target={"wanted": [{"type": "calls", "calls": [call]}]},
        state={"messages": begun, "replies": [{**call, "result": "ok"}]},
    )


class Scripted:
    """An engine of episodes whose policy answers by a function of the task's prompt and the attempt's seed."""

    tells_logprobs = False
    model = None

    def __init__(self, say: Callable[[ChatRequest], str]) -> None:
        self.say, self.begun = say, 0
        self.seeds: list[int] = []

    def begin(self) -> None:
        self.begun += 1

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        self.seeds += [request.seed for request in requests]
        return [ChatResponse(self.say(request), tokens_out=1) for request in requests]

    def close(self) -> None: ...

    def episode(self, seed: int) -> Episode:
        return Episode([1], [2], [1])


def attempts(
    env: Environment,
    tasks: Sequence[Task],
    say: Callable[[ChatRequest], str],
    engine: Any = None,
    keeper: Keeper | None = None,
    **settings: Any,
) -> Attempts:
    asked: Any = engine or Scripted(say)
    chosen = recipes.validate("grpo", {"num_generations": 4, "batch_size": 8, **settings})
    judge = Judge(env)
    spec: Any = SimpleNamespace(settings=chosen, seed=1, environment_weights={})
    curriculum = Curriculum(Path()) if chosen["curriculum"] else None
    return Attempts(spec, tasks, asked, judge, Rewards(judge, tasks, 1), curriculum, keeper)


def step(of: Attempts, *places: int, at: int = 0) -> dict[str, Any]:
    prompts = [str(place) for place in places for _ in range(4)]
    return of(prompts, SimpleNamespace(state=SimpleNamespace(global_step=at)))


def rewarded(of: Attempts) -> dict[str, list[float | None]]:
    return {reward.__name__: reward(log_metric=lambda *_: None) for reward in of.functions()}


TASKS = [Task.from_json(task(name)) for name in NAMES]
ENV = build("tool_call", {"tools": TOOLS}, {})


def right_for(*names: str) -> Callable[[ChatRequest], str]:
    """Right in half of the attempts at these tasks, and never at others."""

    def say(request: ChatRequest) -> str:
        name = request.messages[-1].content.removeprefix("remind ")
        is_right = name in names and request.seed >> TURN_BITS & 1
        return f'{{"tool": "remind", "arguments": {{"who": "{name}"}}}}' if is_right else "no"

    return say


def test_rewards_are_those_of_the_attempts_that_trl_was_given() -> None:
    of = attempts(ENV, TASKS, right_for("Ada"))
    found = step(of, 0, 1)
    assert [len(found[name]) for name in ("prompt_ids", "completion_ids", "env_mask")] == [8, 8, 8]
    values = rewarded(of)
    assert set(values["exact"][:4]) == {0.0, 1.0}
    assert values["exact"][4:] == [0.0] * 4
    assert of.figures["invalid"] == values["exact"].count(0.0) / 8, "without a penalty too: the others say no"


def test_each_attempt_has_a_seed_of_its_own_and_the_same_one_after_a_resume() -> None:
    first, again = Scripted(right_for()), Scripted(right_for())
    for engine in (first, again):
        of = attempts(ENV, TASKS, right_for(), engine)
        step(of, 0, 0, at=3)
    assert first.seeds == again.seeds
    assert len(set(first.seeds)) == 8
    step(of, 0, 0, at=4)
    assert len(set(again.seeds)) == 16
    assert not any(seed & (1 << TURN_BITS) - 1 for seed in again.seeds)


def test_a_group_that_teaches_nothing_makes_room_for_another_task() -> None:
    of = attempts(ENV, TASKS, right_for("Ada", "Bo", "Cy", "Di", "Ed", "Flo"), dynamic_sampling=True, max_resamples=9)
    step(of, 8, 0)
    assert of.groups[0].rollouts[0].task != TASKS[8]
    assert not any(of.is_dull(group) for group in of.groups)
    assert of.figures["resampled"] >= 1


def test_dull_groups_are_replaced_in_batches_as_large_as_will_fill_them() -> None:
    """Three of four groups taught nothing, so that four are tried for each one that is wanted, a step's at most."""
    of = attempts(ENV, TASKS, right_for("Ada"), dynamic_sampling=True, max_resamples=1)
    step(of, 0, 1, 2, 3)
    assert of.figures["resampled"] == 4
    assert of._as_many_as_fill(1) == 2


def test_what_teaches_nothing_stays_where_nothing_else_is_found() -> None:
    of = attempts(ENV, TASKS, right_for(), dynamic_sampling=True, max_resamples=2)
    step(of, 0, 1)
    assert of.figures["resampled"] == 4
    assert all(of.is_dull(group) for group in of.groups)


def test_without_dynamic_sampling_nothing_is_replaced_or_counted() -> None:
    of = attempts(ENV, TASKS, right_for())
    step(of, 0, 1)
    assert [group.rollouts[0].task for group in of.groups] == TASKS[:2]
    assert "resampled" not in of.figures


@given(st.lists(st.none() | st.floats(0, 1), min_size=2, max_size=8))
def test_a_group_is_dull_where_no_advantage_is_left(scores: list[float | None]) -> None:
    """By its whole range, which also holds for continuous rewards and for a baseline that leaves one out."""
    of = attempts(ENV, TASKS, right_for())
    parts = {"exact": 0.0}
    of.rewards.total = lambda verdict: verdict.score  # type: ignore[method-assign]
    group = Group([], [], [Verdict(score, "", parts) for score in scores])
    scored = [score for score in scores if score is not None]
    rest = [[*scored[:place], *scored[place + 1 :]] for place in range(len(scored))]
    gaps = [abs(score - sum(others) / len(others)) for score, others in zip(scored, rest, strict=True) if others]
    assert of.is_dull(group) == (not gaps or max(scored) - min(scored) <= ALIKE)
    if of.is_dull(group):
        assert max(gaps, default=0.0) <= ALIKE


HANGS = """
def reset(seed):
    return {"n": 0}

def add(state) -> int:
    'Add one.'
    state["n"] += 1
    return state["n"]

def wait() -> int:
    'Wait for ever.'
    while True: pass
"""


@pytest.mark.usefixtures("sandbox")
def test_a_tool_that_never_answers_leaves_its_attempts_unscored_and_the_others_teach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world_sessions, "LIMITS", Limits(cpu_seconds=1, wall_seconds=3.0))
    env = build("world", {"source": HANGS}, {"kind": "world"}, Runners(world=Worlds()))
    added = {"wanted": [{"type": "state", "paths": {"/n": 1}}], "solution": [{"tool": "add", "arguments": {}}]}

    def say(request: ChatRequest) -> str:
        if any(message.role == "tool" for message in request.messages):
            return "Done."
        place = seeds.setdefault(request.seed >> TURN_BITS, len(seeds))
        return ['{"tool": "add", "arguments": {}}', "No.", "No.", '{"tool": "wait", "arguments": {}}'][place]

    seeds = dict[int, int]()
    of = attempts(env, [Task("t", "Add one", added)], say)
    step(of, 0)
    (group,) = of.groups
    assert [verdict.score for verdict in group.verdicts] == [1.0, 0.0, 0.0, None]
    assert of.totals()[3] is None
    assert of.figures["unscored"] == 0.25
    assert "WorldError: wait: it " in group.verdicts[3].reason


def test_the_end_of_an_episode_is_told() -> None:
    game = next(iter(generate(1, seed=1)))
    talks = Rollout(game, 0, 1, [Message("user", "board"), Message("assistant", "hm"), Message("user", "board")])
    assert talks.is_out_of_turns
    assert not Rollout(game, 0, 1, talks.messages, ended="broken off: too long").is_out_of_turns
    assert not Rollout(game, 0, 1, talks.messages[:2]).is_out_of_turns
    of = attempts(build("tictactoe", {}, {"kind": "tictactoe"}), list(generate(4, seed=1)), lambda _: "hm")
    step(of, 0, 1)
    assert of.figures == {
        "unscored": 0.0, "repetition": 0.0, "turns": 8.0, "broken_off": 0.0, "out_of_turns": 1.0,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_the_gradient_is_that_of_the_policys_own_words_alone(make: Make, trained: Path) -> None:
    """Beside a slow reference: the mean over attempts of advantage times the mean log-probability of what it wrote."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    from workers.trainers import online_tasks
    from workers.trainers.weights import trained_policy

    settings = {
        "batch_size": 16,
        "num_generations": 8,
        "temperature": 0.7,
        "scale_rewards": "none",
        "max_grad_norm": 99,
    }
    made = make(
        "grpo", on=trained, environment=EPISODES, train=[played(name) for name in NAMES[:4]], held_out=False, steps=1,
        settings={**settings, "max_completion_length": 24},
    )  # fmt: skip
    run = owned(made)
    env, data = run_spec.opened(run.spec)
    loaded = trained_policy.load(run)
    before = copy.deepcopy(loaded.model)
    trainer, of = online_tasks.build(run, loaded, GRPOTrainer, env, data)
    caught = Gradients()
    trainer.add_callback(caught)
    trainer.train()

    loss = torch.zeros(())
    others = 0
    for group in of.groups:
        totals = [of.rewards.total(verdict) or 0.0 for verdict in group.verdicts]
        assert len(set(totals)) > 1, "there is something to learn"
        for rollout, total in zip(group.rollouts, totals, strict=True):
            episode = of.engine.episode(rollout.seed)
            ids = torch.tensor([[*episode.prompt, *episode.completion]])
            at = len(episode.prompt)
            logps = torch.log_softmax(before(ids).logits[0, at - 1 : -1] / 0.7, -1)
            said = logps.gather(1, ids[0, at:, None])[:, 0][torch.tensor(episode.mask, dtype=torch.bool)]
            loss = loss - (total - sum(totals) / len(totals)) * said.mean() / 16
            others += episode.mask.count(0)
    assert others > 0, "tools have spoken in between"
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = {name: weight.grad for name, weight in before.named_parameters() if weight.grad is not None}
    assert wanted.keys() == caught.found.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(caught.found[name], gradient, rtol=1e-3, atol=1e-5)


class Gradients(TrainerCallback):
    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        weights = kwargs["model"].named_parameters()
        self.found = {name: weight.grad.clone() for name, weight in weights if weight.grad is not None}


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_episodes_go_on_after_a_stop_as_if_there_had_been_none(
    mode: str, make: Make, start: Start, trained: Path
) -> None:
    tuning = {"mode": "full"} if mode == "full" else {"mode": "lora", "rank": 4, "alpha": 8}
    fields: dict[str, Any] = {
        "on": trained, "environment": EPISODES, "train": [played(name) for name in NAMES[:3]], "held_out": False,
        "steps": 5, "checkpoint_every": 2, "tuning": tuning, "settings": {"learning_rate": 3e-3, "curriculum": True},
    }  # fmt: skip
    whole, broken = make("dapo", name="whole", **fields), make("dapo", name="broken", **fields)
    other = start(whole)
    trainer = start(broken, hook=slow, given=0.3)
    broken.until(lambda run: len(run.events("step")) >= 2)
    (broken.path / "CANCEL").touch()
    assert trainer.wait() == 0, broken.errors()
    (broken.path / "CANCEL").unlink()
    assert start(broken).wait() == 0, broken.errors()
    assert other.wait() == 0, whole.errors()
    rewards = [{at: each["reward_mean"] for at, each in run.metrics().items()} for run in (whole, broken)]
    assert rewards[0] == rewards[1]
    resting = [run.metrics()[5]["resting_tasks"] for run in (whole, broken)]
    assert resting[0] == resting[1]
    assert broken.result["digest"] == whole.result["digest"]


def test_games_against_an_opponent_are_played_to_their_end(make: Make, start: Start, trained: Path) -> None:
    games = [game.to_json() for game in generate(12, seed=3)]
    run = make("dapo", on=trained, environment=GAMES, train=games[:8], held_out=games[8:], steps=1)
    assert start(run).wait() == 0, run.errors()
    metrics = run.metrics()[1]
    assert metrics["turns_mean"] > 3
    assert metrics["out_of_turns_fraction"] + metrics["broken_off_fraction"] == 1
    assert metrics["resampled_groups"] == 6, "a policy that cannot play loses every game alike"


def test_a_part_of_the_batch_at_a_time_plays_the_same_attempts(make: Make, start: Start, trained: Path) -> None:
    fields: dict[str, Any] = {
        "on": trained, "environment": EPISODES, "train": [played(name) for name in NAMES[:4]], "held_out": False,
        "steps": 2,
    }  # fmt: skip
    whole = make("grpo", name="whole", **fields)
    parts = make("grpo", name="parts", settings={"micro_batch_size": 2}, **fields)
    for run in (whole, parts):
        assert start(run).wait() == 0, run.errors()
    first, again = (run.metrics()[1] for run in (whole, parts))
    assert first["reward_mean"] == pytest.approx(again["reward_mean"])
    assert first["turns_mean"] == again["turns_mean"]


def test_a_step_leaves_its_attempts_as_they_were_judged(tmp_path: Path) -> None:
    of = attempts(ENV, TASKS, right_for("Ada"), keeper=Keeper(tmp_path, 2_000, 10))
    step(of, 0, 1, at=4)
    ((number, path),) = waiting(tmp_path)
    kept = read(path)
    assert number == 5  # the step that learns from them
    assert [each.reward for each in kept] == of.totals()
    assert [each.rollout.seed for each in kept] == [each.seed for group in of.groups for each in group.rollouts]
    assert kept[0].tools == TOOLS


def test_a_run_keeps_the_same_attempts_whether_it_was_stopped_or_not(make: Make, trained: Path, start: Start) -> None:
    kept = []
    for name, hook in (("whole", None), ("stopped", slow)):
        run = make("grpo", name=name, on=trained, steps=4, checkpoint_every=2, held_out=False, keep_attempts=8)
        started = start(run, hook=hook, given=0.3)
        if hook is not None:
            run.until(lambda it: (it.path / "checkpoints/step-2").exists())
            started.signal(signal.SIGKILL)
            started.wait()
            started = start(run)
        assert started.wait() == 0, run.errors()
        kept.append({number: read(path) for number, path in waiting(run.path)})
    assert [len(each) for each in kept[0].values()] == [4, 4]
    assert {number: [_apart(each) for each in own] for number, own in kept[0].items()} == {
        number: [_apart(each) for each in own] for number, own in kept[1].items()
    }


def _apart(kept: Kept) -> Any:
    """An attempt without what is never the same twice."""
    return kept.rollout.seed, kept.rollout.messages, kept.reward, kept.verdict


def test_repetition_is_of_what_the_policy_wrote_and_none_of_what_others_did() -> None:
    own, others = list(range(8)), [9] * 40
    assert repetition(Episode([], [*own, *others], [1] * 8 + [0] * 40)) == 0
    assert repetition(Episode([], others, [1] * 40)) == pytest.approx(1 - 1 / 33)
    assert repetition(Episode([], own[:5], [1] * 5)) == 0
