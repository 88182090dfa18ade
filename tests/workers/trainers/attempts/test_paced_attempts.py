"""Attempts that are sampled while the trainer learns: never too old, each learnt from once, and failures are told."""

import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.core import recipes
from flywheel.core.envs import Environment, build
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.verifiers import Runners, Verdict
from tests.waiting import wait_for
from tests.workers.judging.test_llm_judge import rubric
from tests.workers.trainers.attempts.served_policy import BASE, served
from tests.workers.trainers.attempts.test_paced_attempts_killed import seeds
from tests.workers.trainers.attempts.test_remote_policy import LORA, at
from tests.workers.trainers.attempts.test_step_attempts import ENV, TASKS, right_for
from tests.workers.trainers.cast import TOOLS, Make, Start
from workers.trainers.attempts import paced_attempts
from workers.trainers.attempts.curriculum import Curriculum
from workers.trainers.attempts.live_engine import Episode
from workers.trainers.attempts.paced_attempts import PacedAttempts
from workers.trainers.attempts.rewards import Judge, Rewards
from workers.trainers.attempts.sampled_groups import FOLDER
from workers.trainers.run import checkpoints
from workers.trainers.run.run_failures import TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")

SIZE, STEPS = 2, 12


class Remote:
    """An engine on a server whose answers come when they like."""

    tells_logprobs = True
    is_off = False

    def __init__(self, patience: random.Random) -> None:
        self.version, self.patience = 0, patience
        self.aside: Any = nullcontext
        self.versions: dict[int, int] = {}
        self.asked: list[int] = []
        self.under_way = self.most = 0
        self.failure: Exception | None = None

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        version = self.version
        with self.aside():
            time.sleep(self.patience.random() ** 4 * 0.03)
            if self.failure is not None:
                raise self.failure
        self.versions |= {request.seed: version for request in requests}
        self.asked += [request.seed for request in requests]
        say = right_for("Ada", "Bo", "Cy")
        return [ChatResponse(say(request), tokens_out=1) for request in requests]

    def take(self, seed: int) -> Episode:
        return Episode([1], [2], [1], [-0.5], [self.versions.pop(seed)])

    def close(self) -> None: ...

    def rest(self) -> None: ...


def paced(tmp_path: Path, bound: int, remote: Any, env: Environment = ENV, **settings: Any) -> PacedAttempts:
    (tmp_path / "events.jsonl").touch()
    mode = {"rollouts": "vllm", "execution": "fully_async", "max_staleness": bound} if bound else {}
    chosen = recipes.validate("grpo", {"num_generations": 4, "batch_size": 4 * SIZE, **mode, **settings})
    events: list[dict[str, Any]] = []
    spec: Any = SimpleNamespace(settings=chosen, seed=1, environment_weights={}, digest="0123")
    run: Any = SimpleNamespace(spec=spec, path=tmp_path, work=tmp_path / "work", events=events)
    run.event = lambda event, **fields: events.append({"event": event, **fields})
    judge = Judge(env)
    order = [number % len(TASKS) for number in range(SIZE * STEPS)]
    return PacedAttempts(run, TASKS, order, remote, judge, Rewards(judge, TASKS, 1))


def step(of: PacedAttempts, number: int) -> dict[str, Any]:
    return of(["0"] * 4 * SIZE, SimpleNamespace(state=SimpleNamespace(global_step=number)))


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_token_is_older_than_the_bound_and_all_groups_are_learnt_from_once(tmp_path: Path, bound: int) -> None:
    remote = Remote(random.Random(bound))
    of = paced(tmp_path, bound, remote, dynamic_sampling=True, max_resamples=2)
    ages, idle = [], []
    for number in range(STEPS):
        remote.version = number
        found = step(of, number)
        assert [len(found[name]) for name in ("prompt_ids", "completion_ids", "logprobs")] == [4 * SIZE] * 3
        assert len(of.totals()) == 4 * SIZE
        ages.append(of.figures["staleness_max"])
        shares = [of.figures[f"staleness/{age}"] for age in range(bound + 1)] if bound else [1.0]
        assert sum(shares) == pytest.approx(1)
        assert max(age for age, share in enumerate(shares) if share) == ages[-1]
        idle.append([of.figures[who] for who in ("sampler_idle", "learner_idle") if who in of.figures])
        time.sleep(0.01)  # the trainer learns
    of.close()
    learnt = [group for row in of.run.events for group in row["groups"]]  # type: ignore[attr-defined]
    assert sorted(learnt) == list(range(SIZE * STEPS))
    assert max(ages) <= bound
    assert (max(ages) > 0) == (bound > 0), "sampling goes on while the trainer learns"
    assert not remote.versions, "nothing was sampled for nothing"
    assert [len(shares) for shares in idle] == [0, *[2] * (STEPS - 1)], "before the first step nobody waited"
    assert all(0 <= share <= 1 for shares in idle for share in shares)
    assert bound or all(sampler > 0 for sampler, _ in idle[1:]), "they take turns"


def ended(of: PacedAttempts) -> dict[int, int]:
    """The groups that have ended and were not learnt from, each with the newest version that wrote a token of it."""
    schedule = of._schedule
    assert schedule is not None
    wait_for(lambda: schedule.done == schedule.begun.keys(), "all that was begun ends")
    return {number: found.newest for number, found in of._found.items()}


def killed(of: PacedAttempts) -> None:
    """Leave what a kill leaves."""
    of._pool.shutdown()
    rows = [json.dumps(row) for row in of.run.events]  # type: ignore[attr-defined]
    with (of.run.path / "events.jsonl").open("a") as events:
        events.write("".join(f"{row}\n" for row in rows))


def told(of: PacedAttempts, event: str) -> list[dict[str, Any]]:
    return [row for row in of.run.events if row["event"] == event]  # type: ignore[attr-defined]


def test_a_killed_run_goes_on_with_what_was_sampled(tmp_path: Path) -> None:
    before = paced(tmp_path, 2, Remote(random.Random(1)))
    step(before, 0)
    waiting = ended(before)
    assert len(waiting) == 2 * SIZE
    killed(before)
    remote = Remote(random.Random(2))
    of = paced(tmp_path, 2, remote)
    again = step(of, 0)
    assert told(of, "taken_up")[0]["groups"] == list(range(3 * SIZE)), "those of the step that is made anew too"
    assert not remote.asked
    assert again["logprobs"] == [[-0.5]] * 4 * SIZE
    for number in range(1, STEPS):
        remote.version = number
        step(of, number)
    of.close()
    learnt = [group for row in told(of, "attempts") for group in row["groups"]]
    assert sorted(learnt) == list(range(SIZE * STEPS))
    assert len(remote.asked) == len(set(remote.asked)) == 4 * SIZE * (STEPS - 3)


def test_what_weights_wrote_that_the_checkpoint_does_not_have_is_sampled_again(tmp_path: Path) -> None:
    before = paced(tmp_path, 2, Remote(random.Random(1)))
    for number in range(4):
        before.engine.version = number  # type: ignore[attr-defined]
        if number == 2:
            (tmp_path / checkpoints.PLACE / "step-2").mkdir(parents=True)
        step(before, number)
        waiting = ended(before)
    killed(before)
    lost = {number for number, newest in waiting.items() if newest > 2}
    assert lost
    remote = Remote(random.Random(2))
    remote.version = 2
    of = paced(tmp_path, 2, remote)
    step(of, 2)
    of.close()
    (row,) = told(of, "taken_up")
    made_anew = told(before, "attempts")[2]["groups"]
    assert set(row["groups"]) >= set(made_anew) | (waiting.keys() - lost)
    assert row["again"] == len(lost)
    assert row["message"].endswith(f"; sampled again, because weights from after step 2 wrote them: {len(lost)}")


def test_the_curriculum_learns_from_what_its_checkpoint_does_not_know(tmp_path: Path) -> None:
    before = paced(tmp_path, 1, Remote(random.Random(1)))
    step(before, 0)
    ended(before)
    killed(before)
    of = paced(tmp_path, 1, Remote(random.Random(2)))
    of.curriculum = Curriculum(tmp_path / checkpoints.PLACE)
    step(of, 0)
    of.close()
    (row,) = told(of, "taken_up")
    assert of.curriculum.rates.keys() == {of.order[group] for group in row["groups"]}


def test_damaged_files_are_counted_and_their_groups_sampled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = paced(tmp_path, 1, Remote(random.Random(1)))
    step(before, 0)
    ended(before)
    killed(before)
    torn = tmp_path / FOLDER / "group-1.json"
    torn.write_bytes(torn.read_bytes()[:-1])
    remote, said = Remote(random.Random(2)), list[str]()
    of = paced(tmp_path, 1, remote)
    monkeypatch.setattr(of.run, "warn", said.append, raising=False)
    step(of, 0)
    ended(of)
    of.close()
    (row,) = told(of, "taken_up")
    assert (row["damaged"], row["again"]) == (1, 0)
    assert said == [
        "damaged files in sampled/, whose groups are sampled again: 1, such as group-1.json: it was not written by "
        "this run, or not to its end"
    ]
    assert len(remote.asked) == 4


def test_while_a_judge_is_waited_for_other_groups_are_sampled_and_judged(tmp_path: Path) -> None:
    """The judge answers nobody before attempts at two tasks are before it."""
    asked, changed, is_strict = set[str](), threading.Condition(), threading.Event()

    def mark(settings: Any, trace: Any, reference: Any, *, anew: bool = False) -> Verdict:
        with changed:
            asked.add(trace["messages"][0]["content"])
            changed.notify_all()
            if is_strict.is_set():
                assert changed.wait_for(lambda: len(asked) > 1, timeout=30), "the others wait for this one"
        return Verdict(1.0 if "who" in trace["answer"] else 0.0, "By the rule.")

    of = paced(
        tmp_path, 1, Remote(random.Random(1)), build("tool_call", {"tools": TOOLS}, rubric(), Runners(judge=mark))
    )
    asked.clear()
    is_strict.set()
    step(of, 0)
    of.close()
    assert of.figures["unscored"] == 0, [verdict.reason for group in of.groups for verdict in group.verdicts]
    assert of.totals() == [
        float("who" in rollout.messages[-1].content) for group in of.groups for rollout in group.rollouts
    ]


def test_what_breaks_while_it_is_sampled_is_told_to_who_waits(tmp_path: Path) -> None:
    remote = Remote(random.Random(1))
    remote.failure = TrainingError("sampler", "the server is away")
    of = paced(tmp_path, 1, remote)
    with pytest.raises(TrainingError, match="the server is away"):
        step(of, 0)
    of.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paced-attempts")]


def test_a_wait_for_attempts_that_never_come_is_told_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_attempts, "LOOK_S", 0.01)
    monkeypatch.setattr(paced_attempts, "QUIET_S", 0.05)
    monkeypatch.setattr(paced_attempts, "LIMIT_S", 0.3)
    remote, answered = Remote(random.Random(1)), threading.Event()
    remote.patience = SimpleNamespace(random=lambda: float(not answered.wait(60)))  # type: ignore[assignment]
    of = paced(tmp_path, 1, remote)
    told: list[str] = []
    monkeypatch.setattr(of.run, "warn", told.append, raising=False)
    with pytest.raises(TrainingError, match=r"waits for the attempts of step 1, and for \d+ s no answer has come"):
        step(of, 0)
    assert len(told) == 1, "once a wait"
    of.close()
    answered.set()
    of._pool.shutdown()


def test_a_run_ahead_of_its_updates_is_stopped_and_goes_on_with_what_had_ended(
    make: Make, start: Start, trained: Path
) -> None:
    settings = {"rollouts": "vllm", "execution": "fully_async", "max_staleness": 2, "learning_rate": 3e-3}
    run = make(
        "grpo", on=trained, settings=settings, tuning=LORA, served_base=BASE, held_out=False, steps=6,
        checkpoint_every=1,
    )  # fmt: skip
    with served(trained) as server:
        trainer = start(run, hook=at, given=server.url)
        run.until(lambda it: len(it.events("step")) >= 2)
        (run.path / "CANCEL").touch()
        assert trainer.wait() == 0, run.errors()
        (run.path / "CANCEL").unlink()
        before = len(server.asked)
        assert start(run, hook=at, given=server.url).wait() == 0, run.errors()
    assert not server.adapters
    asked = {body["seed"] for body in server.asked[before:]}
    had_ended = {group for row in run.events("taken_up") for group in row["groups"]}
    assert not asked & {seed for group in had_ended for seed in seeds(group)}
    assert not (run.path / FOLDER).exists()
    learnt = {row["step"]: row["groups"] for row in run.events("attempts")}
    assert sorted(group for groups in learnt.values() for group in groups) == list(range(6 * 2))
    assert all(row["oldest"] <= 2 for row in run.events("attempts"))
    assert max(row["oldest"] for row in run.events("attempts")) > 0
    assert all(row["mean"] < 1e-5 for row in run.events("proof"))
    assert all(metrics["staleness_max"] <= 2 for metrics in run.metrics().values())
    assert all("staleness/2" in metrics for metrics in run.metrics().values())
