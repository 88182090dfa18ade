"""The attempts of an eval whose version is a team's own program: given out, gathered, and handed on to be judged.

Rows say who has what (`evals.attempts.attempt_lifecycle`), whichever way the program comes by its tasks: threads here
call its address or start its command, `concurrency` at once; or it pulls. Whoever takes the run over goes on with the
same rows. An attempt that has its answer is judged when all model calls that were begun in it are recorded.
"""

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, prefetch_related_objects
from django.utils import timezone

from flywheel.agents.models import AttemptKey, AttemptSpan
from flywheel.core import envs
from flywheel.core.envs.kinds import KINDS, players
from flywheel.core.envs.policy_rollouts import ChatResponse, EngineError, Rollout
from flywheel.core.traces import Message, Step
from flywheel.edge.jobs import Lease, LeaseLost
from flywheel.edge.refusals import Stale
from flywheel.environments.models import Task
from flywheel.environments.tasks.task_rows import core_task
from flywheel.evals.attempts import attempt_lifecycle, attempt_tools, waiting_calls
from flywheel.evals.attempts.attempt_lifecycle import ANSWERED, CLAIMED, ENDED, WAITING
from flywheel.evals.attempts.program_rollouts import COUNTS, NOTHING, Action, ModelCall, ToolUse, actions, follow
from flywheel.evals.models import EvalRun, ProgramAttempt, Result
from flywheel.evals.models.runs import BUDGET_CHUNK
from flywheel.evals.runs.submission import attempt_seed
from flywheel.system.env import commands, url
from flywheel.trajectories.ingest import attempt_spans
from workers.policies import program_calls
from workers.policies.program_calls import Broken
from workers.policies.tool_carriers import ToolCarrier

Attempted = list[tuple[Task, Rollout]]

CONCURRENCY = 4
AHEAD = 2
"""Threads for each attempt under way: while the program works for some, the others have theirs ready, or write down an
answer, so that it never waits for the database."""
CHUNK = 64
"""Attempts that are judged and stored together at most."""
LOOK_S, GATHER_S, IDLE_S, EXPIRE_S = 0.1, 0.5, 2.0, 1.0
SETTLE_S = 15.0
"""How long the model calls of an attempt that has its answer are waited for."""
_IN_MESSAGES = ("system", "user", "assistant")
"""Kinds of steps whose content the messages have."""
NO_TRACE = "no trace: it returned no output, and neither called its model nor a tool"
SILENT = 8
"""First attempts of which one at least must have reached the program."""


class ProgramRuns:
    """A context manager, as `answer_stream.Asking`."""

    def __init__(self, lease: Lease, run: EvalRun, env: envs.Environment, waiting: Sequence[tuple[Task, int]]) -> None:
        self._lease, self._run, self._env, self._wanted = lease, run, env, list(waiting)
        self._endpoint = run.version.endpoint
        version = run.task_set.environment_version
        kind = version.environment.kind
        self._owns_tools = not KINDS[kind].from_failures
        self._is_repeatable = attempt_tools.is_repeatable(env)
        self._carrier = ToolCarrier(run, env) if players(kind, version.config) else None
        self._size = min(CHUNK, BUDGET_CHUNK) if run.budget else CHUNK
        self._changed = threading.Condition()
        """Over the two queues and what is begun."""
        self._todo: deque[ProgramAttempt] = deque()
        self._going: deque[ProgramAttempt] = deque()
        """Those that are begun and have another turn."""
        self._begun: set[int] = set()
        """Keys of the rows that were taken from there, until they are stored."""
        self._failure: Exception | None = None
        """Of a thread; `next` raises it."""
        self._slots = threading.Semaphore(self._endpoint.get("concurrency", CONCURRENCY))
        self._stopped = threading.Event()
        self._ready: Attempted = []
        self._ready_rows: list[int] = []
        self._judged: set[int] = set()
        """Keys of the rows whose rollouts are ready or were handed on, and which are not marked as ended."""
        self._handed: list[int] = []
        self._left = len(self._wanted)
        self._finished = 0
        self._ready_at = self._expired_at = 0.0

    def __enter__(self) -> "ProgramRuns":
        place = commands()
        if self._endpoint["way"] == "command" and place is None:
            raise EngineError(
                "this version is a command, and workers here start none: the operator sets FLYWHEEL_COMMANDS to the "
                "directory in which they may, or the version is made with another way"
            )
        rows = self._rows()
        if self._carrier is not None:
            self._carrier.__enter__()
        if self._endpoint["way"] == "pull":
            self._lease.update(message=f"waits for the program of {self._run.version} to pull its work")
        else:
            self._todo.extend(rows)
            for number in range(min(self._left, AHEAD * self._endpoint.get("concurrency", CONCURRENCY))):
                threading.Thread(target=self._work, name=f"program-{number}", daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._stopped.set()
        if self._carrier is not None:
            self._carrier.__exit__()
        if self._lease.lost:
            return
        self._end_handed()
        if self._endpoint["way"] != "pull" or not _gives_back(error):
            under_way = AttemptKey.objects.filter(attempt__run=self._run, attempt__state=CLAIMED)
            under_way.filter(deadline__gt=timezone.now()).update(deadline=timezone.now())

    def next(self) -> Attempted | None:
        """The next rollouts, few or none when little happens; None when no more is wanted. Raises EngineError, and what
        a thread raised."""
        self._end_handed()
        began = time.monotonic()
        while not (self._lease.cancelled or self._lease.lost):
            if self._failure is not None:
                raise self._failure
            self._gather()
            now = time.monotonic()
            is_first = self._finished < min(SILENT, self._left + self._finished)
            has_enough = len(self._ready) >= (SILENT if is_first else self._size) or len(self._ready) == self._left
            if self._ready and (has_enough or (not is_first and now > self._ready_at + GATHER_S)):
                return self._hand_on()
            if now > began + IDLE_S:
                return []
            self._stopped.wait(LOOK_S)
        return None

    # Rows

    def _rows(self) -> list[ProgramAttempt]:
        """Make the rows that are missing, and take back what a worker had that is gone; those that wait."""
        seeds = {(task.pk, sample): attempt_seed(self._run, task, sample) for task, sample in self._wanted}
        tasks = {task.pk: task for task, _ in self._wanted}
        known = ProgramAttempt.objects.filter(run=self._run)
        stale = [row.pk for row in known if row.state == ENDED or (row.task_id, row.sample) not in seeds]
        AttemptKey.objects.filter(attempt__in=stale).delete()
        known.filter(pk__in=stale).delete()
        theirs = known.filter(state=CLAIMED)
        if self._endpoint["way"] == "pull":  # programs that live go on with theirs, but for those of a run that ended
            theirs = theirs.filter(key__deadline__lte=timezone.now())
        attempt_lifecycle.give_again(list(theirs), is_repeatable=self._is_repeatable)
        there = set(known.values_list("task_id", "sample"))
        new = []
        for (pk, sample), seed in seeds.items():
            if (pk, sample) not in there:
                row = ProgramAttempt(run=self._run, task=tasks[pk], sample=sample, seed=seed)
                try:
                    row.messages = [message.to_json() for message in self._env.reset(core_task(tasks[pk]), seed)]
                except Exception as error:
                    row.state, row.error = ANSWERED, f"the environment raised {type(error).__name__}: {error}"
                    row.ended_at = timezone.now()
                new.append(row)
        ProgramAttempt.objects.bulk_create(new, batch_size=500)
        waiting = list(known.filter(state=WAITING).select_related("task").order_by("pk"))
        for row in waiting:
            row.run = self._run
        return waiting

    def _end_handed(self) -> None:
        """Mark what was handed on and is stored as ended; what could not be judged keeps its answer for another go."""
        if self._handed and not self._lease.lost:
            stored = Result.objects.filter(run=self._run, task=OuterRef("task"), sample=OuterRef("sample"))
            rows = ProgramAttempt.objects.filter(Exists(stored), pk__in=self._handed)
            with transaction.atomic():
                AttemptSpan.objects.filter(key__attempt__in=rows).delete()
                rows.update(state=ENDED, messages=[], uses=[], open_call=None, taken=[], output=None)
            self._judged.difference_update(self._handed)
            with self._changed:
                self._begun.difference_update(self._handed)
                self._changed.notify_all()
        self._handed = []

    # Programs that are called here

    def _work(self) -> None:
        try:
            base, place = url(), commands()
            while not self._stopped.is_set():
                if (row := self._take()) is not None:
                    self._attempt(row, base, place)
        except Exception as error:
            self._failure = self._failure or error
        finally:
            connections.close_all()

    def _take(self) -> ProgramAttempt | None:
        """The row whose turn it is; None after a moment without one, or while as many are begun as a budget allows."""
        with self._changed:
            if not self._going and not self._may_begin():
                self._changed.wait(LOOK_S)
            if self._going:
                return self._going.popleft()
            if not self._may_begin():
                return None
            row = self._todo.popleft()
            self._begun.add(row.pk)
            return row

    def _may_begin(self) -> bool:
        return bool(self._todo) and not (self._run.budget and len(self._begun) >= self._size)

    def _put(self, row: ProgramAttempt) -> None:
        with self._changed:
            (self._going if row.pk in self._begun else self._todo).append(row)
            self._changed.notify()

    def _attempt(self, row: ProgramAttempt, base: str, place: Path | None) -> None:
        if self._lease.lost or self._lease.cancelled:
            return
        claim = attempt_lifecycle.claim(row)
        if claim is None:  # another worker was faster; `_gather` looks what becomes of it
            with self._changed:
                self._begun.discard(row.pk)
            return
        work, limit_s = claim.to_json(base), attempt_lifecycle.limit_s(row)
        with self._slots:
            if self._stopped.is_set():
                return
            began = timezone.now()
            found = self._run_program(work, place, limit_s)
        if self._stopped.is_set():
            return  # whoever goes on with the run gives it out again
        with contextlib.suppress(Stale):  # the program has sent its result itself
            attempt_lifecycle.answer(row, **found, began=began)

    def _run_program(self, work: Mapping[str, Any], place: Path | None, limit_s: float) -> dict[str, Any]:
        try:
            if self._endpoint["way"] == "http":
                return program_calls.call(self._endpoint["url"], work, limit_s, self._stopped)
            assert place is not None
            return program_calls.start(self._endpoint["command"], work, place, limit_s, self._stopped)
        except Broken as broken:
            return {"output": None, "error": broken.reason, "is_away": broken.is_away}

    # What comes back

    def _gather(self) -> None:
        rows = ProgramAttempt.objects.filter(run=self._run)
        if time.monotonic() > self._expired_at + EXPIRE_S:
            self._expired_at = time.monotonic()
            self._take_back(rows.filter(state=CLAIMED, lease_until__lt=timezone.now()))
        answered = rows.filter(state=ANSWERED).exclude(pk__in=self._judged).order_by("ended_at")
        answered = answered.annotate(recorded=Count("key__spans", filter=Q(key__spans__is_own=False)))
        for row in answered.select_related("key", "task"):
            row.run = self._run
            missing = max(0, row.key.calls - row.recorded) if row.key else 0
            assert row.ended_at is not None
            if not missing or row.ended_at < timezone.now() - timedelta(seconds=SETTLE_S):
                self._conclude(row, missing)

    def _take_back(self, late: QuerySet[ProgramAttempt]) -> None:
        """Give again what nobody holds any more: of programs that pull, or what a worker claimed that is gone."""
        if self._endpoint["way"] == "pull":
            some = list(late.select_related("key", "run__version"))
            attempt_lifecycle.expire(some, is_repeatable=self._is_repeatable)
            return
        with self._changed:
            mine = list(self._begun)
        some = list(late.exclude(pk__in=mine))
        for row in attempt_lifecycle.give_again(some, is_repeatable=self._is_repeatable):
            row.run = self._run
            self._put(row)

    def _conclude(self, row: ProgramAttempt, missing: int) -> None:
        """Make the attempt a rollout, or let its program go on where the environment does."""
        prefetch_related_objects([row], "key__spans")
        calls = attempt_tools.model_calls(row) or [
            ModelCall.from_step(step) for step in _own_steps(row, row.key) if step.kind == "assistant"
        ]
        uses = [ToolUse.from_json(use) for use in row.uses]
        given = [Message.from_json(message) for message in row.messages]
        task = core_task(row.task)
        rollout = Rollout(task, row.sample, row.seed, given)
        taken = [ChatResponse(**each) for each in row.taken]
        error, is_away = waiting_calls.reason(row), row.is_away or bool(missing)
        if missing and not error:
            error = f"{missing} of its {missing + len(calls)} model calls were not recorded within {SETTLE_S:g} s"
        try:
            acts = actions(calls, uses, row.output, tools=self._env.tools, owns_tools=self._owns_tools)
            if row.key is None and error:
                rollout.broken = error
            elif error:
                is_away = is_away or any(call.response.is_away for call in calls)
                rollout.messages, news = _shown(given, acts), [act.response for act in acts]
                taken += [*news, ChatResponse(error=error, is_away=is_away, latency_ms=0.0)]
            elif not acts:
                taken.append(ChatResponse(error=NO_TRACE, latency_ms=0.0))
            else:
                rollout.messages, news, users = follow(self._env, task, row.seed, given, acts)
                taken += _timed(news, row)
                if users and len(taken) < self._env.max_turns:
                    self._go_on(row, [*rollout.messages, *users], taken)
                    return
        except Exception as raised:
            rollout.broken = f"the environment raised {type(raised).__name__}: {raised}"
        rollout.responses = _counts(row, taken)
        rollout.inside = [step for step in _own_steps(row) if step.kind not in _IN_MESSAGES]
        self._judged.add(row.pk)
        self._ready.append((row.task, rollout))
        self._ready_rows.append(row.pk)
        self._ready_at = self._ready_at or time.monotonic()

    def _go_on(self, row: ProgramAttempt, messages: Sequence[Message], taken: Sequence[ChatResponse]) -> None:
        """Let the program have its next turn."""
        row.state, row.output, row.goes, row.uses, row.open_call = WAITING, None, 0, [], None
        row.messages = [message.to_json() for message in messages]
        row.taken = [_json(each) for each in taken]
        row.save(update_fields=["state", "output", "goes", "uses", "open_call", "messages", "taken"])
        if self._endpoint["way"] != "pull":
            self._put(row)

    def _hand_on(self) -> Attempted:
        ready, self._ready = self._ready, []
        if not self._finished and all(rollout.is_away for _, rollout in ready):
            cause, times = Counter(rollout.error for _, rollout in ready).most_common(1)[0]
            raise EngineError(f"not one of the first {len(ready)} attempts reached the program; {times} times: {cause}")
        self._handed, self._ready_rows, self._ready_at = self._ready_rows, [], 0.0
        self._finished += len(ready)
        self._left -= len(ready)
        return ready


def _gives_back(error: BaseException | None) -> bool:
    """Whether the run goes on elsewhere after this, as `Lease` has it, and its programs with it."""
    return error is not None and (
        not isinstance(error, Exception) or isinstance(error, LeaseLost | OperationalError | InterfaceError)
    )


def _own_steps(row: ProgramAttempt, turn: AttemptKey | None = None) -> list[Step]:
    """Return what the program told of itself, in order; in one turn, or in all."""
    spans = [span for span in row.key.spans.all() if span.is_own] if row.key else []
    spans = [span for span in spans if turn is None or attempt_spans.turn_of(span) == turn.public]
    return [attempt_spans.step_of(span) for span in sorted(spans, key=lambda span: (span.started_at, span.span_id))]


def _shown(given: Sequence[Message], acts: Sequence[Action]) -> list[Message]:
    """Return the messages of an attempt that is not judged."""
    return [*given, *(said for act in acts for said in (act.message, *act.results.values()))]


def _timed(news: Sequence[ChatResponse], row: ProgramAttempt) -> list[ChatResponse]:
    """The same, with the program's own time at the last of them: what is reported is how long the product took."""
    assert row.claimed_at is not None
    assert row.ended_at is not None
    rest = (row.ended_at - row.claimed_at) / timedelta(milliseconds=1) - sum(each.latency_ms or 0 for each in news)
    return [*news[:-1], replace(news[-1], latency_ms=(news[-1].latency_ms or 0) + max(0.0, rest))]


def _counts(row: ProgramAttempt, taken: Sequence[ChatResponse]) -> list[ChatResponse]:
    """Return the counts of the answers, those of a recorded beginning 0; unknown where no model was seen called."""
    begun = sum(message["role"] == "assistant" for message in row.messages) - len(row.taken)
    every = [NOTHING] * begun + list(taken)
    if any(each.model or each.tokens_in for each in every):
        return every
    return [replace(each, tokens_in=None, tokens_out=None, cost_usd=None) for each in every]


def _json(response: ChatResponse) -> dict[str, Any]:
    return {name: getattr(response, name) for name in (*COUNTS, "finish_reason", "model")}
