"""The broker of a training run: who asks, for a trainer without key and network, what its environments need, and its
teacher where somebody else serves it.

It lives as long as this worker follows the run, through every trainer that is started. Who takes the run over from a
worker that died starts another, since the trainer of the first ended with it. Judges meet their canaries, and servers
begin a session, before the trainer starts: what cannot be asked ends a run that would learn from it there, with the
reason. A run that learns from something else goes on without, and has no figures from there.

What judges say is remembered as in evals, with what it took, before the trainer hears it. So whoever is killed, a
trainer that resumes and makes the same attempts again gets the same verdicts, and nobody is paid for them twice.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from django.db import connections

from flywheel.core import envs
from flywheel.core.envs import kinds
from flywheel.core.envs.policy_rollouts import EngineError
from flywheel.core.envs.wrappers.rubric_environment import Judged
from flywheel.core.recipes import ALGORITHMS, ENDPOINT
from flywheel.core.verifiers import GymError, Runners, Verdict, WorldError, rubric
from flywheel.core.verifiers.rubric import Part
from flywheel.edge.jobs import Lease, State
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.proofs import judge_endpoints
from flywheel.environments.tasks.task_rows import core_task
from flywheel.training.models import TrainingRun
from workers.jobs.training.trainer_process import TrainingFailed
from workers.judging import attempt_verdicts, project_judges
from workers.judging.hosted_teacher import HostedTeacher
from workers.judging.llm_judge import Judge, JudgeError
from workers.judging.model_simulator import ModelSimulator
from workers.judging.trainer_broker import Broker
from workers.policies.answer_prices import with_price
from workers.policies.endpoint_keys import with_key
from workers.worlds import gym_sessions

T = TypeVar("T")


@contextmanager
def broker_of(lease: Lease, run: TrainingRun) -> Iterator["RunBroker | None"]:
    """The run's broker, who is there; None where nothing is asked elsewhere. Raises TrainingFailed where the run would
    learn from what cannot be asked."""
    judges, hosted = judges_of(run), run.settings.get("teacher_from") == ENDPOINT
    if not judges and not hosted and not any(_needs(task_set) & kinds.OUTSIDE for task_set in run.task_sets):
        yield None
        return
    teacher = _teacher_of(run) if hosted else None
    aside = _Aside()
    judge = _judge_of(run, judges, aside)
    report = run.outside_calls.get("simulator")
    runners = replace(project_judges.runners(run.project, {}, simulated=report, lease=lease), judge=judge)
    account = _Account(lease, run, judge, runners, aside, teacher)
    try:
        broker = None
        watched = watched_in(judges)
        if _is_there(lease, run, runners, watched):
            parts = [part.settings for _, part in judges.values()]
            account.broker = _broker(run, runners, parts, account.settle, teacher)
            broker = RunBroker(account.broker, judge, account, ALGORITHMS[run.algorithm].practises, watched)
        yield broker
    finally:
        judge.close()
        if isinstance(runners.simulator, ModelSimulator):
            runners.simulator.close()
        if teacher is not None:
            teacher.close()
        if account.broker is not None:
            account.broker.close()
        if lease.job.state == State.RUNNING and not lease.lost:
            account.settle()
        aside.close()


def _judge_of(run: TrainingRun, judges: Mapping[str, tuple[str, Part]], aside: "_Aside") -> Judge:
    names = {digest: name for name, (digest, _) in judges.items()}
    memory = _Memory(aside, judge_endpoints.Memory(run.project))
    return Judge(project_judges.endpoints_of(run.project), names, run.outside_calls.get("judges"), memory)


def _teacher_of(run: TrainingRun) -> HostedTeacher:
    """The run's teacher at its endpoint, with the project's key and prices. Raises TrainingFailed."""
    assert run.teacher is not None
    try:
        endpoint = with_price(with_key(run.teacher.endpoint, run.project_id), run.project_id)
        return HostedTeacher(run.teacher.digest, endpoint, run.outside_calls.get("teacher"))
    except EngineError as error:
        raise TrainingFailed("teacher", f"{run.teacher} cannot be asked: {error}") from error


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
            own = f"{name}.{part.name}" if is_taken else part.name
            if own not in found or found[own][1].is_watched:
                found[own] = digest, part
    return found


def watched_in(judges: Mapping[str, tuple[str, Part]]) -> frozenset[str]:
    """The names of those judges whose word nothing is learnt from."""
    learnt = {digest for digest, part in judges.values() if not part.is_watched}
    return frozenset(name for name, (digest, _) in judges.items() if digest not in learnt)


def _is_there(lease: Lease, run: TrainingRun, runners: Runners, watched: frozenset[str]) -> bool:
    """Whether whom the run asks can be asked. Raises TrainingFailed where not and it would learn from what they say."""
    try:
        _meet(run, runners, watched)
    except (JudgeError, WorldError, GymError) as error:
        if ALGORITHMS[run.algorithm].practises:
            raise TrainingFailed(error.kind, f"its attempts cannot be judged: {error}") from error
        lease.log(f"its tasks cannot be asked while it trains: {error}", "warning")
        return False
    return True


def _broker(
    run: TrainingRun,
    runners: Runners,
    parts: Iterable[Mapping[str, Any]],
    settle: Callable[[], object],
    teacher: HostedTeacher | None,
) -> Broker:
    counts = run.outside_calls.get("questions")
    try:
        return Broker(runners, map(_environment, run.task_sets), parts, settle, counts, teacher)
    except OSError as error:
        raise TrainingFailed("broker", f"no socket can be opened for what the run asks: {error}") from error


class RunBroker:
    def __init__(
        self, broker: Broker, judge: Judge, account: "_Account", learns: bool, watched: frozenset[str] = frozenset()
    ) -> None:
        """`learns`: whether the run learns from what is said here, but for the `watched` judges."""
        self._broker, self._judge, self._account, self._learns = broker, judge, account, learns
        self._watched = watched
        self._is_told = False

    @property
    def path(self) -> str:
        """The path of its socket."""
        return self._broker.path

    def follow(self, lease: Lease) -> bool:
        """Keep what was asked so far; whether that is more than at the last time. Raises TrainingFailed for a broker
        that is gone, and for a judge that a canary has made void where the run learns from it: its rewards are worth
        nothing, nor is what they taught."""
        if not self._broker.is_alive:
            raise TrainingFailed("broker", f"the broker at {self.path} is gone; resume the run")
        self._account.settle()
        for words in self._account.waits():
            lease.log(words, "warning")
        if found := self._judge.void:
            void = "; ".join(found.values())
            if self._learns and found.keys() - self._watched:
                raise TrainingFailed("canary", void)
            if not self._is_told:
                lease.log(f"what the judge said of this run counts for nothing: {void}", "warning")
            self._is_told = True
        return self._account.is_more()


class _Account:
    """Answers to a run and what they took, kept in one step: after a kill neither is there without the other."""

    def __init__(
        self,
        lease: Lease,
        run: TrainingRun,
        judge: Judge,
        runners: Runners,
        aside: "_Aside",
        teacher: HostedTeacher | None,
    ) -> None:
        self._lease, self._run, self._judge, self._runners, self._aside = lease, run, judge, runners, aside
        self._teacher = teacher
        self._seen: Mapping[str, Any] = {}
        self.broker: Broker | None = None
        """Who counts the questions, once there is one."""

    def settle(self) -> None:
        """Keep all that was said until now. Who comes while others are at it waits, and mostly finds it done. Raises
        LeaseLost."""
        self._aside.do(self._settle)

    def is_more(self) -> bool:
        """Whether more was kept since this was asked last."""
        before, self._seen = self._seen, self._run.outside_calls
        return before is not self._seen

    def waits(self) -> list[str]:
        """The spells in which the teacher was waited for since this was asked last."""
        return self._teacher.waits() if self._teacher else []

    def _settle(self) -> None:
        if self._calls_so_far() == self._run.outside_calls:
            return
        with self._lease.guard():
            self._judge.keep()  # before the report, which then has what each of these took
            asked = self._calls_so_far()
            self._lease.update(outside_calls=asked)
        self._run.outside_calls = asked

    def _calls_so_far(self) -> dict[str, Any]:
        simulator = self._runners.simulator
        return {
            **self._run.outside_calls,
            "judges": self._judge.report,
            "simulator": simulator.report if isinstance(simulator, ModelSimulator) else {},
            **({"teacher": self._teacher.report} if self._teacher else {}),
            **({"questions": self.broker.counts} if self.broker else {}),
        }


class _Aside:
    """A thread with a connection of its own, in which whoever asks has it done."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="run-account")
        self._ident = self._thread.submit(threading.get_ident).result()

    def do(self, what: Callable[..., T], *about: Any) -> T:
        return what(*about) if threading.get_ident() == self._ident else self._thread.submit(what, *about).result()

    def close(self) -> None:
        self._thread.submit(connections.close_all)
        self._thread.shutdown()


class _Memory:
    """A memory of judges' verdicts, asked aside."""

    def __init__(self, aside: _Aside, memory: judge_endpoints.Memory) -> None:
        self._aside, self._memory = aside, memory

    def recall(self, keys: Iterable[str]) -> Mapping[str, Verdict]:
        return self._aside.do(self._memory.recall, keys)

    def keep(self, said: Mapping[str, Verdict]) -> None:
        self._aside.do(self._memory.keep, said)

    def forget(self, keys: Iterable[str]) -> None:
        self._aside.do(self._memory.forget, keys)


def _needs(task_set: TaskSet) -> frozenset[str]:
    version = task_set.environment_version
    return kinds.needs(version.environment.kind, version.config, version.verifier)


def _environment(task_set: TaskSet, runners: Runners | None = None) -> envs.Environment:
    version = task_set.environment_version
    return envs.build(version.environment.kind, version.config, version.verifier, runners or Runners())


def _meet(run: TrainingRun, runners: Runners, watched: frozenset[str]) -> None:
    """Ask each of them once, but for what is only watched: that meets its canaries with its first question, and may be
    away. Raises JudgeError, WorldError and GymError."""
    learnt = run.reward_recipe.rubric.learnt if run.reward_recipe else None
    recipe = learnt if learnt and "judge" in learnt.needs else None
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
            project_judges.refuse(asking, watched)
        gym_sessions.meet(env, task)
