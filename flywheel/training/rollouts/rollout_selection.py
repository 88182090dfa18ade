"""Rollouts that may become training data: read light, filtered one step after the other, every loss counted.

    rollouts = rollouts_of(run)                 a row for each attempt, without its text
    found = select(run, rollouts, choice)       those that stay, and where each of the others went

Only of the train split: `attempts` refuses any other run, and a dataset is checked against the members of its set once
more. Unscored attempts stand apart from the first: they are neither good nor bad.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, Final

from django.db import transaction
from django.db.models import Count, F, Value
from django.db.models.functions import Coalesce

from flywheel.accounts.actors import Actor
from flywheel.core.digests import canonical
from flywheel.core.evidence.similarity import near_duplicates
from flywheel.core.text.normal_form import normalise
from flywheel.core.text.number_words import percent
from flywheel.core.traces import Message, Trace
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments.models import Split
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs.void_scores import void_of
from flywheel.training.models import Dropped
from flywheel.training.rollouts.rollout_choice import Choice, Condition
from flywheel.trajectories.models import Step, Trajectory
from flywheel.trajectories.store.stored_traces import traces_of

LOOKED_AT: Final = 1_500
"""Rollouts whose texts a page compares while somebody waits."""
READ: Final = 5_000
"""Rollouts whose texts are read for one dataset, in the request that writes it."""
MOST: Final = 20_000
"""Rollouts of a run that datasets are made of."""
AT_ONCE: Final = 500

UNSCORED, DROPPED, SILENT, ALIKE, CAP = "unscored", "dropped", "silent", "alike", "cap"


class NotForTraining(Stale):
    """Nothing may be learnt from this run; the message says why."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """An attempt at a task, as filters see it."""

    pk: int
    task: int
    number: int
    sample: int
    score: float | None
    success: bool | None
    parts: dict[str, Any]
    tokens: int | None
    turns: int
    trajectory: int | None
    trace_id: str
    is_synthetic: bool
    cause: str = ""
    error: str = ""
    why_dropped: str = ""
    """The reason of whoever dropped it."""

    @property
    def task_name(self) -> str:
        return f"t-{self.number}"


@dataclass(frozen=True, slots=True)
class Filter:
    """One step of the way: what it asks, how many came to it and how many went on."""

    name: str
    words: str
    before: int
    after: int

    @property
    def out(self) -> int:
        return self.before - self.after


@dataclass(slots=True)
class Selection:
    """The rollouts of a run that a choice leaves."""

    rollouts: list[Rollout]
    kept: list[Rollout] = field(default_factory=list)
    every: list[Rollout] = field(default_factory=list)
    """Before the better ones were preferred: among these a pair finds its worse one."""
    steps: list[Filter] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)
    """By rollout: the name of the step at which it was left out."""
    alike: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By rollout that was left out for it: the one that it is like, and how much."""
    uncompared: int = 0
    """Rollouts among which near-duplicates were not looked for, since there are too many."""

    def pass_(self, name: str, words: str, stays: Callable[[Rollout], bool]) -> None:
        """Let those go on that stay."""
        after = [rollout for rollout in self.kept if stays(rollout)]
        staying = {rollout.pk for rollout in after}
        self.left |= {rollout.pk: name for rollout in self.kept if rollout.pk not in staying}
        self.steps.append(Filter(name, words, len(self.kept), len(after)))
        self.kept = after

    @property
    def is_compared(self) -> bool:
        return not self.uncompared

    @property
    def is_by_reward(self) -> bool:
        """Whether somebody was left out for being worse than another, which no threshold says, or because the verifier
        would not score them."""
        return any(step.out for step in self.steps if step.name in (UNSCORED, ALIKE, CAP))


def attempts(run: EvalRun) -> EvalRun:
    """The run, if its rollouts may be trained on. Raises NotForTraining."""
    if run.split != Split.TRAIN:
        raise NotForTraining(
            f"{run} attempted {run.get_split_display()} tasks of {run.task_set}: nobody may train on those; "
            "collect rollouts on the train split"
        )
    if not run.is_finished:
        raise NotForTraining(f"{run} is {run.state}; its rollouts can be used once it is over")
    if void_of(run.judges):
        raise NotForTraining(f"{run} is void, since its judge passed a canary; evaluate again with one that does not")
    return run


def rollouts_of(run: EvalRun) -> list[Rollout]:
    """Every attempt of the run, by task and sample. Raises NotForTraining."""
    results = attempts(run).results.order_by("task__number", "sample")
    if (count := results.count()) > MOST:
        raise NotForTraining(f"{run} has {count} rollouts; a dataset is made of at most {MOST}: collect in parts")
    said = Step.objects.filter(trajectory__result__run=run, kind="assistant").order_by()
    turns = dict(said.values_list("trajectory").annotate(Count("pk")))
    columns = ("pk", "task", "sample", "score", "success", "parts", "trajectory", "cause", "error")
    rows = results.values(
        *columns,
        number=F("task__number"),
        tokens=F("tokens_out"),
        trace_id=Coalesce("trajectory__trace_id", Value("")),
        is_synthetic=F("task__is_synthetic"),
        why_dropped=Coalesce("dropped__reason", Value("")),
    )
    return [Rollout(**row, turns=turns.get(row["trajectory"], 0)) for row in rows]


def select(rollouts: Sequence[Rollout], choice: Choice) -> Selection:
    """Those that can be looked at further: scored, not dropped, and of the size and kind that is wanted."""
    found = Selection(list(rollouts), kept=list(rollouts))
    found.pass_(UNSCORED, "has a score", lambda rollout: rollout.score is not None)
    found.pass_(DROPPED, "not dropped by hand", lambda rollout: not rollout.why_dropped)
    found.pass_(SILENT, "the policy said something", lambda rollout: rollout.turns > 0)
    if choice.synthetic:
        words = {"no": "of a real task", "only": "of a synthetic task"}[choice.synthetic]
        found.pass_("synthetic", words, lambda rollout: rollout.is_synthetic == (choice.synthetic == "only"))
    if (turns := choice.turns) is not None:
        found.pass_("turns", f"at most {turns} answers", lambda rollout: rollout.turns <= turns)
    if (tokens := choice.tokens) is not None:
        # What was not counted is not known to be short.
        found.pass_("tokens", f"at most {tokens} tokens written", lambda r: r.tokens is not None and r.tokens <= tokens)
    return found


def prefer(found: Selection, choice: Choice, *, most: int | None = None) -> Selection:
    """Keep the selected rollouts that may be imitated or preferred: good enough, each once, a few of a task."""
    found = replace(found, every=found.kept, steps=list(found.steps), left=dict(found.left))
    if (reward := choice.reward) is not None:
        found.pass_("reward", f"reward at least {reward:g}", lambda rollout: (rollout.score or 0.0) >= reward)
    for condition in choice.parts:
        found.pass_(str(condition), f"part {condition}", partial(_meets, condition))
    if choice.alike is not None:
        found.uncompared = 0 if most is None or len(found.kept) <= most else len(found.kept)
        if found.is_compared:
            found.alike = _alike(_best_first(found.kept), choice.alike)
            words = f"not {percent(choice.alike)} like a better one"
            found.pass_(ALIKE, words, lambda rollout: rollout.pk not in found.alike)
    if choice.cap is not None:
        _cap(found, choice.cap)
    return found


def conversations(rollouts: Iterable[Rollout]) -> dict[int, list[Message]]:
    """Return the conversation of each, by rollout."""
    return {pk: trace.conversation() for pk, trace in stored(rollouts).items()}


def stored(rollouts: Iterable[Rollout]) -> dict[int, Trace]:
    """Return the trajectory of each, by rollout."""
    found: dict[int, Trace] = {}
    waiting = [rollout for rollout in rollouts if rollout.trajectory is not None]
    for start in range(0, len(waiting), AT_ONCE):
        part = waiting[start : start + AT_ONCE]
        rows = Trajectory.objects.filter(pk__in=[rollout.trajectory for rollout in part])
        traces = traces_of(rows)
        found |= {r.pk: traces[r.trajectory] for r in part if r.trajectory in traces}
    return found


@transaction.atomic
def drop(*, result: Result, reason: str, actor: Actor) -> Dropped:
    """Take a rollout out of what may be trained on. Datasets that have it already stay as they are.

    Raises Refused.
    """
    reason = reason.strip()
    if not reason or len(reason) > 300:
        raise Refused("say in up to 300 characters why nobody should learn from it", field="reason")
    row, made = Dropped.objects.get_or_create(result=result, defaults={"reason": reason, "actor": actor.user})
    if made:
        _note(result, "training.drop_rollout", actor, reason)
    return row


@transaction.atomic
def take_back(*, result: Result, actor: Actor) -> None:
    """Let a dropped rollout be used again. Raises Stale where it is not dropped."""
    deleted, _ = Dropped.objects.filter(result=result).delete()
    if not deleted:
        raise Stale("it is not dropped")
    _note(result, "training.take_rollout_back", actor, "")


def _note(result: Result, action: str, actor: Actor, reason: str) -> None:
    subject = f"{result.run}: {result.task} #{result.sample}"
    actor.record(project=result.run.project, action=action, subject=subject, reason=reason)


def _meets(condition: Condition, rollout: Rollout) -> bool:
    return condition.holds(rollout.parts)


def _best_first(rollouts: Iterable[Rollout]) -> list[Rollout]:
    return sorted(rollouts, key=lambda rollout: (-(rollout.score or 0.0), rollout.number, rollout.sample))


def _cap(found: Selection, cap: int) -> None:
    taken: Counter[int] = Counter()
    staying = set()
    for rollout in _best_first(found.kept):
        if taken[rollout.task] < cap:
            taken[rollout.task] += 1
            staying.add(rollout.pk)
    found.pass_(CAP, f"at most {cap} of a task, the best first", lambda rollout: rollout.pk in staying)


def _alike(rollouts: Sequence[Rollout], likeness: float) -> dict[int, tuple[int, float]]:
    """By rollout that nearly repeats a better one of its task: that one, and how alike they are.

    Whoever called something else did something else, however alike the words are.
    """
    said = conversations(rollouts)
    groups: defaultdict[tuple[int, str], list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.task, _calls(said.get(rollout.pk, []))].append(rollout)
    found: dict[int, tuple[int, float]] = {}
    for group in groups.values():
        if len(group) > 1:
            found |= _repeats({rollout.pk: _compared(said.get(rollout.pk, [])) for rollout in group}, likeness)
    return found


def _repeats(texts: Mapping[int, tuple[str, str]], likeness: float) -> dict[int, tuple[int, float]]:
    """Find those that are like one before that stays itself, so that a chain of small changes is not one."""
    found: dict[int, tuple[int, float]] = {}
    stays: list[tuple[int, list[Any]]] = []
    for pk, pair in texts.items():
        ours = [near_duplicates.shingles(text) for text in pair]
        likes = [(other, min(map(near_duplicates.jaccard, ours, theirs))) for other, theirs in stays]
        twin, like = max(likes, key=itemgetter(1), default=(0, 0.0))
        if like >= likeness:
            found[pk] = (twin, like)
        else:
            stays.append((pk, ours))
    return found


def _calls(messages: Iterable[Message]) -> str:
    """Return the calls with their arguments, in contamination's normal form."""
    return normalise(canonical([[c.name, c.arguments] for each in messages for c in each.tool_calls]).decode())


def _compared(messages: Sequence[Message]) -> tuple[str, str]:
    """Return the texts that must be alike, in contamination's normal form: all that was asked, answered and
    observed, and the last answer, which counts for little in a long conversation. The system prompt is everybody's."""
    said = [message.content for message in messages if message.role != "system"]
    answers = [message.content for message in messages if message.role == "assistant"]
    return normalise("\n".join(said)), normalise("".join(answers[-1:]))
