"""The broker of a training run: who asks, for a trainer without key and network, what its environments need.

It lives as long as this worker follows the run, through every trainer that is started. Who takes the run over from a
worker that died starts another, since the trainer of the first ended with it. Judges meet their canaries, and servers
begin a session, before the trainer starts: what cannot be asked ends a run that would learn from it there, with the
reason. A run that learns from something else goes on without, and has no figures from there.

What judges say is remembered as in evals. So a trainer that resumes and makes the same attempts again gets the same
verdicts, as far as they were remembered; what is asked anew may be answered otherwise.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from django.db import connections

from flywheel.core import envs
from flywheel.core.envs import kinds
from flywheel.core.envs.wrappers.rubric_environment import Judged
from flywheel.core.recipes import ALGORITHMS
from flywheel.core.verifiers import GymError, Runners, Verdict, WorldError, rubric
from flywheel.core.verifiers.rubric import Part
from flywheel.edge.jobs import Lease
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.proofs import judge_endpoints
from flywheel.environments.tasks.task_rows import core_task
from flywheel.training.models import TrainingRun
from workers.jobs.training.trainer_process import TrainingFailed
from workers.judging import attempt_verdicts, project_judges
from workers.judging.llm_judge import Judge, JudgeError
from workers.judging.model_simulator import ModelSimulator
from workers.judging.trainer_broker import Broker
from workers.worlds import gym_sessions

T = TypeVar("T")


@contextmanager
def broker_of(lease: Lease, run: TrainingRun) -> Iterator["RunBroker | None"]:
    """The run's broker, who is there; None where nothing is asked elsewhere. Raises TrainingFailed where the run would
    learn from what cannot be asked."""
    judges = judges_of(run)
    if not judges and not any(_needs(task_set) & kinds.OUTSIDE for task_set in run.task_sets):
        yield None
        return
    memory = _Aside(judge_endpoints.Memory(run.project))
    report, names = run.outside_calls, {digest: name for name, (digest, _) in judges.items()}
    judge = Judge(project_judges.endpoints_of(run.project), names, report.get("judges"), memory)
    runners = replace(
        project_judges.runners(run.project, {}, simulated=report.get("simulator"), lease=lease), judge=judge
    )
    learns = ALGORITHMS[run.algorithm].practises
    broker: RunBroker | None = None
    try:
        _meet(run, runners)
    except (JudgeError, WorldError, GymError) as error:
        _note(lease, run, judge, runners, {})
        if learns:
            raise TrainingFailed(error.kind, f"its attempts cannot be judged: {error}") from error
        lease.log(f"its tasks cannot be asked while it trains: {error}", "warning")
    else:
        parts = [part.settings for _, part in judges.values()]
        broker = RunBroker(_broker(run, runners, parts), judge, runners, learns)
    try:
        yield broker
    finally:
        if broker is not None:
            broker.close(lease, run)
        judge.keep()
        memory.close()


def judges_of(run: TrainingRun) -> dict[str, tuple[str, Part]]:
    """The parts that are judges in whatever judges the run's attempts, by a name of their own, each with its digest.
    Nothing else may its trainer have judged."""
    found: dict[str, tuple[str, Part]] = {}
    versions = [task_set.environment_version for task_set in run.task_sets]
    asking = [(version.environment.name, version.verifier) for version in versions]
    asking += [(run.reward_recipe.name, run.reward_recipe.spec)] if run.reward_recipe else []
    for name, spec in asking:
        for digest, part in rubric.judges(spec).items():
            is_taken = found.get(part.name, (digest, part))[0] != digest
            found[f"{name}.{part.name}" if is_taken else part.name] = digest, part
    return found


def _broker(run: TrainingRun, runners: Runners, parts: Iterable[Mapping[str, Any]]) -> Broker:
    try:
        return Broker(runners, map(_environment, run.task_sets), parts)
    except OSError as error:
        raise TrainingFailed("broker", f"no socket can be opened for what the run asks: {error}") from error


class RunBroker:
    def __init__(self, broker: Broker, judge: Judge, runners: Runners, learns: bool) -> None:
        """`learns`: whether the run learns from what is said here."""
        self._broker, self._judge, self._runners, self._learns = broker, judge, runners, learns
        self._is_told = False

    @property
    def path(self) -> str:
        """The path of its socket."""
        return self._broker.path

    def follow(self, lease: Lease, run: TrainingRun) -> bool:
        """Keep what was said so far; whether that is more than before. Raises TrainingFailed for a broker that is gone,
        and for a judge that a canary has made void where the run learns from it: its rewards are worth nothing, nor is
        what they taught."""
        if not self._broker.is_alive:
            raise TrainingFailed("broker", f"the broker at {self.path} is gone; resume the run")
        self._judge.keep()
        is_more = _note(lease, run, self._judge, self._runners, self._broker.counts)
        if void := "; ".join(self._judge.void.values()):
            if self._learns:
                raise TrainingFailed("canary", void)
            if not self._is_told:
                lease.log(f"what the judge said of this run counts for nothing: {void}", "warning")
            self._is_told = True
        return is_more

    def close(self, lease: Lease, run: TrainingRun) -> None:
        """Answer nothing any more, and keep with the run what it has asked."""
        self._broker.close()
        _note(lease, run, self._judge, self._runners, self._broker.counts)


def _note(lease: Lease, run: TrainingRun, judge: Judge, runners: Runners, questions: Mapping[str, int]) -> bool:
    """Keep with the run what it has asked so far, and what that took; whether that is more than before."""
    simulator = runners.simulator
    asked = run.outside_calls | {
        "judges": judge.report,
        "simulator": simulator.report if isinstance(simulator, ModelSimulator) else {},
        "questions": questions,
    }
    if asked == run.outside_calls or lease.lost:
        return False
    run.outside_calls = asked
    lease.update(outside_calls=asked)
    return True


class _Aside:
    """A memory that is asked in one thread, with a connection of its own, whichever thread asks it."""

    def __init__(self, memory: judge_endpoints.Memory) -> None:
        self._memory = memory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judges-memory")

    def recall(self, keys: Iterable[str]) -> Mapping[str, Verdict]:
        return self._do(self._memory.recall, keys)

    def keep(self, said: Mapping[str, Verdict]) -> None:
        self._do(self._memory.keep, said)

    def forget(self, keys: Iterable[str]) -> None:
        self._do(self._memory.forget, keys)

    def close(self) -> None:
        self._thread.submit(connections.close_all)
        self._thread.shutdown()

    def _do(self, what: Callable[[Any], T], about: Any) -> T:
        return self._thread.submit(what, about).result()


def _needs(task_set: TaskSet) -> frozenset[str]:
    version = task_set.environment_version
    return kinds.needs(version.environment.kind, version.config, version.verifier)


def _environment(task_set: TaskSet, runners: Runners | None = None) -> envs.Environment:
    version = task_set.environment_version
    return envs.build(version.environment.kind, version.config, version.verifier, runners or Runners())


def _meet(run: TrainingRun, runners: Runners) -> None:
    """Ask each of them once. Raises JudgeError, WorldError and GymError."""
    recipe = run.reward_recipe.rubric if run.reward_recipe and "judge" in run.reward_recipe.rubric.needs else None
    for task_set in run.task_sets:
        if not _needs(task_set) & kinds.OUTSIDE and recipe is None:
            continue
        members = task_set.members.filter(split__in=(Split.TRAIN, Split.HELD_OUT)).select_related("task")
        member = members.order_by("-split", "task__number").first()  # a train task where there are some
        assert member is not None, "no set is frozen without tasks"
        env, task = _environment(task_set, runners), core_task(member.task)
        by_recipe = [Judged(env.own if isinstance(env, Judged) else env, recipe, runners)] if recipe else []
        for asking in (env, *by_recipe):
            if (judge := attempt_verdicts.judge_of(asking)) is not None:
                judge.recall(attempt_verdicts.questions(asking, [(task, env.reset(task, 0))]))
            project_judges.refuse(asking)
        gym_sessions.meet(env, task)
