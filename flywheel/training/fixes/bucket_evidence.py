"""Traits that the failures of a bucket have in common, for whoever writes a fix; and of retrieval, what was missing.

Failures of what is measured are left out: what they wanted would stand beside the drafts.

evidence_of(project, bucket, agent)
    .calls          which tool was called instead of which, and how often
    .arguments      which arguments of a right tool were wrong
    .notes          what reviewers wrote
    .retrieval      of a retrieval failure: was what the right answer needed in the context at all?
    .left_out       how many failures were left out, and why
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.accounts.models import Project
from flywheel.agents.models import Agent
from flywheel.core.text.normal_form import normalise
from flywheel.core.traces import Message, corrections, tooling
from flywheel.core.traces.episodes import every_text
from flywheel.environments.tasks.recorded_tasks import recorded_action
from flywheel.environments.tasks.task_attempts import attempt_of
from flywheel.failures.buckets import bucket_definitions
from flywheel.failures.models import Decision, Failure
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.trajectories.models import Source
from flywheel.trajectories.store.stored_traces import traces_of

READ = 100
"""Failures that are read, the newest."""
LONGEST = 1_000
"""Steps of a trajectory; longer ones are not read while somebody waits."""
TOP = 5
"""Of each list."""
NOTE = 300
"""Characters of a reviewer's note."""
VALUE = 60
"""Longer texts are composed, not found: they are not looked for."""
RETRIEVAL = "retrieval_failure"

MOST_VALUES = 20
"""Of a failure, the first: more are not looked for while somebody waits."""
MOST_WORDS = 4_000
"""Characters of a corrected text that are read for values."""

_TOKEN = re.compile(r"[\w.@/:+-]+")
_DIGIT = re.compile(r"\d")
_MARKS = ".@/:+-"
"""Of a token, where they do not close it."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Values that the right answer of one failure needed, and those of them that stood nowhere before it."""

    failure: Failure
    values: list[str]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class Retrieval:
    rows: list[Needed]
    unknown: int
    """Failures without a correction, or with one that names no value to look for."""

    @property
    def checked(self) -> int:
        return len(self.rows)

    @property
    def absent(self) -> int:
        """Failures of which something that was needed was never in the context."""
        return sum(bool(row.missing) for row in self.rows)

    @property
    def words(self) -> str:
        if not self.rows:
            return "No correction here names a value that could be looked for in what the agent had read."
        there = self.checked - self.absent
        told = f"In {self.absent} of {self.checked} failures the needed value was never in the context"
        if not self.absent:
            return f"{told}: the agent had what it needed, so a prompt or examples can help."
        if 2 * self.absent < self.checked:
            return f"{told}; in the other {there} a prompt or examples can help."
        return f"{told}: no prompt can supply it there. Fix the queries, the index or the search tool."


@dataclass(frozen=True, slots=True)
class BucketEvidence:
    failures: int
    """Labelled failures in the bucket that were read."""
    calls: list[tuple[str, str, int]]
    """What was called, what should have been, and how often; empty texts for no call."""
    arguments: list[tuple[str, int]]
    notes: list[str]
    retrieval: Retrieval | None
    """None for any other kind of failure."""
    attempts_left_out: int = 0
    """Failures of those read that are attempts at held-out or sealed tasks."""
    sources_left_out: int = 0
    """Failures of those read of whose session such a task was made."""

    @property
    def left_out(self) -> str:
        """Say how many failures were left out, and why; empty where none was."""
        why = [
            (self.attempts_left_out, "attempts at held-out or sealed tasks"),
            (self.sources_left_out, "of a session that a held-out or sealed task was made of"),
        ]
        told = " and ".join(f"{count} {what}" for count, what in why if count)
        return f"Left out: {told}. A draft that knew of them would be measured by what it knows." if told else ""


def evidence_of(
    project: Project, bucket: str, agent: Agent | None = None, *, measured: Measured | None = None
) -> BucketEvidence:
    """Read the newest failures in the bucket, of the agent or of all, except those of what is measured. `measured` is
    the project's, where it was read already. What a policy did while it learnt shows no weakness of the agent."""
    rows = Failure.objects.filter(project=project, current=True, bucket=bucket, trajectory__step_count__lte=LONGEST)
    rows = rows.exclude(trajectory__source=Source.TRAINING)
    rows = rows if agent is None else rows.filter(trajectory__agent=agent)
    rows = rows.exclude(decision=Decision.REJECTED).select_related("trajectory__result__task").order_by("-pk")
    failures, attempts, sources = _not_measured(rows[:READ], measured or Measured(project))
    traces = traces_of(failure.trajectory for failure in failures)
    read = [(failure, *recorded_action(traces[failure.trajectory_id], failure)) for failure in failures]
    calls: Counter[tuple[str, str]] = Counter()
    arguments: Counter[str] = Counter()
    for failure, _, answer in read:
        made = tooling.calls_of(answer) if answer else ()
        for called, wanted in _pairs(made, wanted_calls(failure.corrected or {})):
            if called.get("tool") != wanted.get("tool"):
                calls[str(called.get("tool", "")), str(wanted.get("tool", ""))] += 1
            else:
                arguments.update(f"{wanted['tool']}: {name}" for name in _unequal(called, wanted))
    notes = dict.fromkeys(failure.note.strip()[:NOTE] for failure in failures if failure.note.strip())
    is_retrieval = bucket_definitions.family(project, bucket) == RETRIEVAL
    return BucketEvidence(
        len(failures),
        [(*pair, count) for pair, count in calls.most_common(TOP)],
        arguments.most_common(TOP),
        list(notes)[:TOP],
        _retrieval(read) if is_retrieval else None,
        attempts,
        sources,
    )


def _not_measured(rows: Iterable[Failure], measured: Measured) -> tuple[list[Failure], int, int]:
    """Return the failures that may be shown to whoever writes a fix, and how many are attempts at what is measured, and
    how many the sources of it."""
    kept, attempts, sources = [], 0, 0
    for failure in rows:
        result = getattr(failure.trajectory, "result", None)
        if attempt_of(failure.trajectory).is_measured or (result and result.task_id in measured.tasks):
            attempts += 1
        elif measured.has_source(failure.trajectory):
            sources += 1
        else:
            kept.append(failure)
    return kept, attempts, sources


def wanted_calls(corrected: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls of a correction; none where it wants words."""
    form = corrections.form_of(corrected)
    return [corrected] if form == "tool" else list(corrected["calls"]) if form == "calls" else []


def _pairs(made: Sequence[Any], wanted: Sequence[Mapping[str, Any]]) -> Iterable[tuple[Mapping[str, Any], Any]]:
    """Yield what was called beside what should have been, in order; nothing of what there is no correction for."""
    for place in range(max(len(made), len(wanted)) if wanted else 0):
        call = made[place] if place < len(made) else None
        called = {"tool": call.name, "arguments": call.arguments} if call else {}
        yield called, wanted[place] if place < len(wanted) else {}


def _unequal(called: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Name the arguments that differ."""
    given, right = called.get("arguments"), wanted.get("arguments") or {}
    if not isinstance(given, Mapping):
        return ["unreadable"]
    names = [*right, *(name for name in given if name not in right)]
    return [name for name in names if not tooling.is_same(given.get(name), right.get(name))]


def _retrieval(read: Iterable[tuple[Failure, list[Message], Message | None]]) -> Retrieval:
    rows, unknown = [], 0
    for failure, before, _ in read:
        values = needed_values(failure.corrected or {}, failure.trajectory.tools or [])
        if not values:
            unknown += 1
            continue
        context = normalise("\n".join(message.content for message in before if message.role != "assistant"))
        rows.append(Needed(failure, values, [value for value in values if not _stands_in(value, context)]))
    return Retrieval(rows, unknown)


def needed_values(corrected: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The values that a right answer must have found: arguments that are no choice of the schema and no text of its
    own, and in words whatever holds a digit or is an address."""
    found: dict[str, None] = {}
    for call in wanted_calls(corrected):
        tool = tooling.find(tools, str(call.get("tool")))
        schemas = tooling.properties(tool) if tool else {}
        for name, value in (call.get("arguments") or {}).items():
            if "enum" not in schemas.get(name, {}) and not isinstance(value, bool):
                found |= dict.fromkeys(text for text in _leaves(value) if text.strip() and len(text) <= VALUE)
    for name in ("text", "refuse", "ask"):
        if isinstance(corrected.get(name), str):
            found |= dict.fromkeys(_facts(corrected[name]))
    return list(found)[:MOST_VALUES]


def _facts(text: str) -> Iterable[str]:
    """Yield what holds a digit, or is an address. Other words may be anybody's."""
    for token in _TOKEN.findall(text[:MOST_WORDS]):
        word = token.strip(_MARKS)
        if 2 <= len(word) <= VALUE and ("@" in word or _DIGIT.search(word)):
            yield word


def _leaves(value: Any) -> Iterable[str]:
    """Yield the texts and numbers in a value, not the names of its fields."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif not isinstance(value, bool):
        yield from every_text([value])


def _stands_in(value: str, context: str) -> bool:
    """Whether the context has the value as a word or words of its own."""
    return bool(re.search(rf"(?<!\w){re.escape(normalise(value))}(?!\w)", context))
