"""Groups of attempts that a server samples, ahead of the updates that learn from them as far as the bound allows.

Each group is played by a thread of its own. One of them at a time, or the trainer's evaluation, has the turn in which
environments, verifiers and the tokenizer are used; while the server is waited for, or whoever judges and plays
elsewhere, the turn is free. When what is told here is done (`docs/design/rollouts.md`): `group_schedule`.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from flywheel.core import recipes
from flywheel.core.envs import Task
from workers.judging import attempt_verdicts
from workers.trainers.attempts.curriculum import Curriculum
from workers.trainers.attempts.group_schedule import GroupSchedule
from workers.trainers.attempts.live_engine import Episode
from workers.trainers.attempts.remote_policy import RemoteEngine
from workers.trainers.attempts.rewards import Judge, Rewards
from workers.trainers.attempts.sampled_groups import FOLDER, SampledGroup, SampledGroups
from workers.trainers.attempts.step_attempts import Attempts, Group
from workers.trainers.run.kept_attempts import Keeper
from workers.trainers.run.run_directory import Run, is_complete
from workers.trainers.run.run_failures import TrainingError

THREADS = 64
"""Groups that are played at once, at most."""
LOOK_S, QUIET_S, LIMIT_S = 10.0, 300.0, 1200.0
"""How often it looks while attempts are waited for; after how long without an answer it says so, and when it gives up.
One answer may take 600 seconds, and a server that is away is waited for 300 (`remote_policy`)."""


class PacedAttempts(Attempts):
    engine: RemoteEngine

    def __init__(
        self,
        run: Run,
        tasks: Sequence[Task],
        order: Sequence[int],
        engine: RemoteEngine,
        judge: Judge,
        rewards: Rewards,
        curriculum: Curriculum | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        """`order`: the place of each group's task among the tasks."""
        super().__init__(run.spec, tasks, engine, judge, rewards, curriculum, keeper)
        self.run, self.order, self.bound = run, order, recipes.staleness_bound(run.spec.settings)
        self.turn = threading.Lock()
        self._changed = threading.Condition(self.turn)
        self._schedule: GroupSchedule | None = None
        self._found: dict[int, SampledGroup] = {}
        self._learnt: dict[int, int] = {}
        """The groups that were learnt from, each with the number of updates before that one."""
        self._kept = SampledGroups(run)
        self._broken: BaseException | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="paced-attempts")
        engine.aside = self._aside
        self._asking = Meter()
        self._heard_at, self._is_stuck = 0.0, False
        self._told_of = -1.0
        """The silence, by its beginning, that was told last."""
        self._learnt_at = 0.0

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`: as many groups as the prompts are for, those that the schedule says."""
        step = int(trainer.state.global_step)
        came = time.monotonic()
        with self.turn:
            self._heard_at = came
            if self._schedule is None:
                self._schedule = self._resumed(step, len(prompts) // self._size)
            for number in self._schedule.begin():
                self._pool.submit(self._sample, number, step)
            while not (taken := self._schedule.take()):
                if self._broken is not None:
                    raise self._broken
                assert self._schedule.begun, "nothing is under way, and it would wait for ever"
                self._wait(step)
            waited = time.monotonic() - came
            found = [self._found.pop(number) for number in taken]
            self.groups = [each.group for each in found]
            episodes = [episode for each in found for episode in each.episodes]
            self._count(sum(each.resampled for each in found), episodes)
            self._keep(step)
            ages = [step - version for episode in episodes for version in episode.versions]
            if ages:
                self.figures |= {"staleness": fmean(ages), "staleness_max": float(max(ages))}
            if ages and self.bound:
                by_age = Counter(ages)
                self.figures |= {f"staleness/{age}": by_age[age] / len(ages) for age in range(self.bound + 1)}
            self.figures |= self._idle(waited)
            self.run.event("attempts", step=step, groups=taken, oldest=max(ages, default=0))
            self._learnt |= dict.fromkeys(taken, step)
            self._kept.sweep(self._learnt)
        self.engine.rest()
        return self._tokens(episodes)

    def _resumed(self, step: int, size: int) -> GroupSchedule:
        """The schedule from this step on, with what an earlier start has sampled.

        Only what weights wrote that are behind this step is taken up: those of a later one are gone, since the run
        makes its next updates anew.
        """
        # Steps that were not finished on their attempts have them made anew.
        finished = step - self.spec.settings["num_iterations"]
        self._learnt = {group: at for at, groups in self._used().items() if at <= finished for group in groups}
        schedule = GroupSchedule(size, self.bound, len(self.order), step, set(self._learnt))
        found, damaged = self._kept.read()
        waiting = {number: each for number, each in found.items() if number not in self._learnt}
        taken = schedule.take_up({number: each.begun for number, each in waiting.items() if each.newest <= step})
        self._found = {number: waiting[number] for number in taken}
        if self.curriculum is not None:
            for each in self._found.values():
                if each.newest == step:  # of those from before, the checkpoint knows
                    self.curriculum.learn(each.place, each.group.verdicts, is_dull=self.is_dull(each.group))
        again = waiting.keys() - self._found.keys()
        if waiting or damaged:
            self._tell_taken_up(step, len(again), damaged)
        self._kept.remove(again)
        return schedule

    def _tell_taken_up(self, step: int, again: int, damaged: Mapping[str, str]) -> None:
        lost = f"; sampled again, because weights from after step {step} wrote them: {again}" if again else ""
        self.run.event(
            "taken_up",
            step=step,
            groups=sorted(self._found),
            again=again,
            damaged=len(damaged),
            message=f"groups of attempts that had ended and are taken up: {len(self._found)}{lost}",
        )
        for name, reason in list(damaged.items())[:1]:
            self.run.warn(
                f"damaged files in {FOLDER}/, whose groups are sampled again: {len(damaged)}, such as {name}: {reason}"
            )

    def _wait(self, step: int) -> None:
        """Wait until something has changed or it is time to look. Raises TrainingError of kind sampler where no answer
        has come for longer than any may take."""
        if self._changed.wait(LOOK_S):
            return
        quiet = time.monotonic() - self._heard_at
        about = f"waits for the attempts of step {step + 1}, and for {quiet:.0f} s no answer has come"
        if quiet > QUIET_S and self._told_of != self._heard_at:
            self._told_of = self._heard_at
            self.run.warn(f"the trainer {about}; after {LIMIT_S:.0f} s the run fails")
        if quiet > LIMIT_S:
            self._is_stuck = True
            raise TrainingError("sampler", f"the trainer {about}")

    def close(self) -> None:
        """Begin nothing more, and wait for the answers that are under way, unless they have been given up."""
        with self.turn:
            self._broken = self._broken or RuntimeError("the run is over")
        self._pool.shutdown(wait=not self._is_stuck, cancel_futures=True)
        if self.engine.is_off or is_complete(self.run.path):
            self._kept.drop()
        super().close()

    def _sample(self, number: int, begun: int) -> None:
        """Play a group, and others in its place while they teach nothing, as dynamic sampling wants it. `begun`: the
        version that is published now."""
        assert self._schedule is not None
        attempt_verdicts.aside.set(self._out_of_turn)
        step, at = divmod(number, self._schedule.size)
        with self.turn:
            try:
                reserve, resampled = self._reserve(f"{step} {at}"), 0
                place = own = self._in_turn(self.order[number], reserve)
                (group,) = self._play([place], f"{step}", at)
                while resampled < self._rounds and self.is_dull(group):
                    self._episodes(group)  # forgotten: they make room
                    place = self._due(reserve, own)
                    (group,) = self._play([place], f"{step} again {resampled}", at)
                    resampled += 1
                found = SampledGroup(place, begun, group, self._episodes(group), resampled)
                self._kept.keep(number, found)
            except BaseException as error:
                self._broken = self._broken or error  # told by the thread that waits for it
            else:
                self._found[number] = found
                self._schedule.end(number)
            self._changed.notify_all()

    def _idle(self, waited: float) -> dict[str, float]:
        """The shares of the time since the step before in which the trainer waited for attempts, and in which the
        server was asked for none; nothing in the first step of a start, before which nobody could do anything."""
        before, self._learnt_at = self._learnt_at, time.monotonic()
        lasted, asked = self._learnt_at - before, self._asking.take()
        return {"learner_idle": waited / lasted, "sampler_idle": max(0.0, 1 - asked / lasted)} if before else {}

    def _episodes(self, group: Group) -> list[Episode]:
        return [self.engine.take(rollout.seed) for rollout in group.rollouts]

    @contextmanager
    def _aside(self) -> Iterator[None]:
        with self._out_of_turn(), self._asking:
            yield

    @contextmanager
    def _out_of_turn(self) -> Iterator[None]:
        if self._broken is not None:
            raise self._broken
        self._heard_at = time.monotonic()
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()
            self._heard_at = time.monotonic()

    def _used(self) -> dict[int, list[int]]:
        """The groups that each step learnt from, by the run's events; where a resume repeated a step, the last."""
        found = {}
        for line in (self.run.path / "events.jsonl").read_bytes().splitlines():
            row = json.loads(line)
            if row["event"] == "attempts":
                found[row["step"]] = row["groups"]
        return found


class Meter:
    """Seconds in which at least one thing was under way, of however many threads."""

    def __init__(self) -> None:
        self._lock, self._under_way, self._since, self._seconds = threading.Lock(), 0, 0.0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._tick()
            self._under_way += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._tick()
            self._under_way -= 1

    def take(self) -> float:
        """The seconds since they were taken last."""
        with self._lock:
            self._tick()
            found, self._seconds = self._seconds, 0.0
        return found

    def _tick(self) -> None:
        now = time.monotonic()
        self._seconds += (now - self._since) * bool(self._under_way)
        self._since = now
