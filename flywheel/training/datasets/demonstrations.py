"""Production trajectories that are called good as demonstrations, frozen as a dataset.

    found = gather(wanted)               the rows, and what was left out and why; writes nothing
    write(name="good", wanted=…, actor=…)    keep them

A row is one thing that the agent said, with all that came before it as its prompt, and loss on nothing but that. So a
step that failed is masked: it stands in the prompts of what follows and is no row's completion. Rows are written for a
version: they open with its prompt, name its tools and make calls in its form. Nothing is taken of a trajectory whose
session, itself or beginning the project measures with.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.core.traces import (
    Conversation,
    Message,
    Step,
    Trace,
    call_forms,
    episodes,
    openai_messages,
    speaking,
)
from flywheel.edge.refusals import Refused, at_field
from flywheel.environments.versions.environment_versions import check_name
from flywheel.failures.models import Failure
from flywheel.training.datasets import contamination_checks, dataset_builder
from flywheel.training.datasets.dataset_builder import Draft, written_for
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.models import Dataset
from flywheel.trajectories.formats.messages.message_turns import of_score
from flywheel.trajectories.import_export.trajectory_export import selection
from flywheel.trajectories.models import Feedback, Label, Source, Trajectory
from flywheel.trajectories.search.query import settled
from flywheel.trajectories.store.stored_traces import traces_of

MOST = 1_000
"""Trajectories of a dataset, the newest that are chosen."""
MOST_ROWS = 20_000
AT_ONCE = 50
"""Trajectories that are read together."""
NAMED = 20
"""Left-out trajectories that are named for each reason."""
CUT = ("length", "max_tokens", "content_filter")
"""Reasons to finish of an answer that is not whole."""

GOOD = {
    "good": "people or feedback call it good",
    "filter": "the filter finds it",
}
"""What makes a trajectory good enough to imitate."""
LEFT_OUT = {
    "rollout": "a rollout; data is made of those under Rollouts",
    "agent": "another agent’s",
    "failure": "a failure, and no message of the agent is marked as the failing one",
    "not_good": "nobody calls it good, or somebody calls it bad",
    "measured": "its session, itself or its beginning is in a held-out or sealed task",
    "nothing": "nothing to learn from that place on",
    "too_long": "its answers, each with all that came before it, are more than a dataset may have",
    "duplicate": "says the same as others do",
}
"""Why a trajectory gives no row."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A choice of trajectories, and for whom they are written."""

    version: Version
    q: str = ""
    """A filter of the list; rows by `ids` where any are given."""
    ids: Sequence[str] = ()
    good: str = "good"
    """A key of `GOOD`."""
    start: int = 1
    """The agent's message to learn from on, counted from 1."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """Span ids by trace id: to learn from this step on instead."""


@dataclass
class Gathered:
    """The rows of a choice, and what became of everything in it."""

    choice: Wanted
    chosen: int = 0
    """Trajectories that were looked at."""
    beyond: int = 0
    """Older ones that were not: `MOST` at a time, and no more once the rows are `MOST_ROWS` or `MOST_CHARACTERS`."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Those of one trajectory share their messages."""
    characters: int = 0
    """About how many the rows take."""
    used: int = 0
    """Trajectories that gave a row."""
    masked: int = 0
    """Messages of the agent that stand in prompts only: they failed, were cut off, or were somebody else's."""
    repeated: int = 0
    """Rows that others say too."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Trace ids by reason, a key of `LEFT_OUT`."""

    @property
    def tokens(self) -> int:
        """About how many the rows hold, prompts included."""
        return dataset_builder.tokens(self.rows)

    @property
    def learnt_tokens(self) -> int:
        """About how many carry loss."""
        return dataset_builder.tokens(self.rows, ["completion"])

    @property
    def reasons(self) -> list[dict[str, Any]]:
        """`{"reason", "words", "count", "first"}`, the first ones by trace id."""
        return reasons_shown({name: {"count": len(ids), "first": ids[:NAMED]} for name, ids in self.left_out.items()})

    def leave_out(self, reason: str, row: Trajectory) -> bool:
        """Count it. Returns that there is room for the next one."""
        self.left_out.setdefault(reason, []).append(row.trace_id)
        return True


def reasons_shown(left_out: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Say what a dataset of trajectories left out, in the order in which it was asked."""
    return [{"reason": name, "words": LEFT_OUT[name], **left_out[name]} for name in LEFT_OUT if name in left_out]


def gather(wanted: Wanted) -> Gathered:
    """The rows of a choice. Raises Refused for a filter that cannot be read, and for what cannot be chosen."""
    project = wanted.version.agent.project
    if wanted.good not in GOOD:
        raise Refused(f"{wanted.good[:40]!r} is unknown, one of {', '.join(GOOD)} is wanted", field="good")
    if wanted.start < 1:
        raise Refused(f"{wanted.start} is no message of the agent; the first is 1", field="start")
    with at_field("q"):
        rows = selection(project.pk, wanted.q, wanted.ids)
    found = Gathered(wanted)
    chosen = list(rows.order_by("-started_at", "-pk")[:MOST])
    found.chosen, found.beyond = len(chosen), max(0, rows.count() - MOST) if len(chosen) == MOST else 0
    measured, seen = Measured(project), set[bytes]()
    good = list(_good(found, chosen, project, measured))
    for start in range(0, len(good), AT_ONCE):
        part = good[start : start + AT_ONCE]
        failing = dict(Failure.objects.filter(trajectory__in=part, current=True).values_list("trajectory", "step"))
        traces = traces_of(part)
        for at, row in enumerate(part, start):
            if not _take(found, row, traces[row.pk], failing.get(row.pk, ""), measured, seen):
                found.chosen, found.beyond = found.chosen - (len(good) - at), found.beyond + len(good) - at
                return found
    return found


def draft(wanted: Wanted, found: Gathered | None = None) -> Draft:
    """The dataset that the choice would be. Raises Refused where it has no row."""
    found = found or gather(wanted)
    if not found.rows:
        said = "; ".join(f"{each['count']}: {each['words']}" for each in found.reasons) or "no trajectory is chosen"
        raise Refused(f"nothing is left to learn from ({said})", field="q")
    recipe = {
        "filter": settled(wanted.q) if not wanted.ids else "",
        "by_hand": len(wanted.ids),
        "good": wanted.good,
        "start": wanted.start,
        "trajectories": found.used,
        "from_traces": list(dict.fromkeys(row["trajectory"] for row in found.rows)),
        "chosen": found.chosen,
        "beyond": found.beyond,
        "masked": found.masked,
        "left_out_trajectories": {
            name: {"count": len(ids), "first": ids[:NAMED]} for name, ids in found.left_out.items()
        },
        "tokens": found.tokens,
        "learnt_tokens": found.learnt_tokens,
        "duplicates": found.repeated,
        "native_calls": dataset_builder.native_calls(found.rows),
        **written_for(wanted.version),
        **dict.fromkeys(("tasks", "from_failures", "from_rollouts", "synthetic"), 0),
    }
    project, origin = wanted.version.agent.project, Dataset.Origin.TRAJECTORIES
    return Draft(Dataset.Kind.SFT, None, found.rows, recipe, project, origin)


def write(*, name: str, wanted: Wanted, actor: Actor, found: Gathered | None = None) -> Dataset:
    """Keep the rows as the next version of a dataset, or return the one that has them already. `found` is what `gather`
    said, where it was asked already. Raises Refused."""
    check_name(name)
    kept = dataset_builder.keep(name, draft(wanted, found), actor)
    contamination_checks.shown(kept)  # a longer check is left to the launch
    return kept


def _good(found: Gathered, chosen: Sequence[Trajectory], project: Project, measured: Measured) -> Iterator[Trajectory]:
    """Those of the chosen that may be learnt from, as far as their own row and what is said of them tell."""
    said = _feedback(project, [row.trace_id for row in chosen if row.feedback_count])
    steps = Failure.objects.filter(trajectory__in=chosen, current=True).exclude(step="")
    marked = set(steps.values_list("trajectory", flat=True))
    agent = found.choice.version.agent_id
    for row in chosen:
        if row.source == Source.ROLLOUT:
            found.leave_out("rollout", row)
        elif row.agent_id not in (None, agent):
            found.leave_out("agent", row)
        elif row.label == Label.FAILURE and row.pk not in marked:
            found.leave_out("failure", row)
        elif found.choice.good == "good" and not _is_called_good(row, said.get(row.trace_id, set())):
            found.leave_out("not_good", row)
        elif measured.has_source(row):
            found.leave_out("measured", row)
        else:
            yield row


def _feedback(project: Project, trace_ids: Collection[str]) -> dict[str, set[str]]:
    """Read what feedback that holds now says of each whole trajectory: `success`, `failed`, or both."""
    rows = Feedback.objects.filter(project=project, trace_id__in=trace_ids, current=True, span_id="")
    found: dict[str, set[str]] = {}
    for trace_id, value, score in rows.values_list("trace_id", "value", "score"):
        if outcome := of_score(value) or of_score(score):
            found.setdefault(trace_id, set()).add(outcome)
    return found


def _is_called_good(row: Trajectory, said: Collection[str]) -> bool:
    """A person's word on the whole weighs more than feedback, of which none may be bad."""
    return row.label == Label.PASS or set(said) == {"success"}


def _take(found: Gathered, row: Trajectory, trace: Trace, failing: str, measured: Measured, seen: set[bytes]) -> bool:
    """Add the rows of a trajectory, or say why it has none. Returns whether there was room for them."""
    messages, said = _answers_in(trace)
    if measured.has_beginning(messages):
        return found.leave_out("measured", row)
    masked = _failed(trace, said)
    if failing:
        if (at := _place_of(failing, trace, said)) is None:
            return found.leave_out("failure", row)
        masked.add(at)
    first = _first(found.choice, row, said)
    learnt = [at for at, _ in said[first:] if at not in masked] if first is not None else []
    rows = list(_rows(row, messages, learnt, trace, found.choice.version))
    size = dataset_builder.characters(rows)
    if size > dataset_builder.MOST_CHARACTERS or len(rows) > MOST_ROWS:
        return found.leave_out("too_long", row)
    if found.characters + size > dataset_builder.MOST_CHARACTERS or len(found.rows) + len(rows) > MOST_ROWS:
        return False
    made = {dataset_builder.row_digest(each): each for each in rows}
    fresh = [each for key, each in made.items() if key not in seen]
    seen.update(made)
    found.repeated += len(made) - len(fresh)
    if not fresh:
        return found.leave_out("duplicate" if made else "nothing", row)
    found.used += 1
    found.masked += sum(message.role == "assistant" for message in messages) - len(learnt)
    found.rows += fresh
    found.characters += dataset_builder.characters(fresh)
    return True


def _answers_in(trace: Trace) -> tuple[list[Message], list[tuple[int, Step]]]:
    """The conversation, and where in it stands what the agent said in this trajectory, with its steps. What a call was
    given as history, such as worked examples, it did not say here."""
    talk, said = Conversation(), list[tuple[int, Step]]()
    for step in speaking(trace.steps):
        start = len(talk.messages)
        added = talk.add(step)
        told = len(added) - len(step.output)
        said += [(start + at, step) for at, each in enumerate(added) if at >= told and each.role == "assistant"]
    return talk.messages, said


def _failed(trace: Trace, said: Sequence[tuple[int, Step]]) -> set[int]:
    """Places of the agent's messages that nobody shall learn, whatever people say: with an error of their own or of a
    call that they made, cut off, or with arguments that are no object."""
    masked = {at for at, step in said if step.status == "error" or step.error or step.finish_reason in CUT}
    calls = episodes.read(trace).calls
    failed = (call for call in calls if call.observation and call.observation.failed)
    return masked | {call.at for call in failed} | {call.at for call in calls if not isinstance(call.arguments, dict)}


def _place_of(span: str, trace: Trace, said: Sequence[tuple[int, Step]]) -> int | None:
    """Where the agent's message of this step stands, for a tool's step of the call that it carried out."""
    if (at := next((at for at, step in said if step.span_id == span), None)) is not None:
        return at
    marked = next((step for step in trace.steps if step.span_id == span), None)
    own = marked.tool_call_id if marked else ""
    found = (call for call in episodes.read(trace).calls if call.observation and call.observation.step == span)
    calls = [call for call in episodes.read(trace).calls if own and call.id == own]
    return next((call.at for call in (*calls, *found)), None)


def _first(wanted: Wanted, row: Trajectory, said: Sequence[tuple[int, Step]]) -> int | None:
    """Which of the things said is the first to learn from; None where there is none such."""
    if span := wanted.steps.get(row.trace_id):
        return next((place for place, (_, step) in enumerate(said) if step.span_id == span), None)
    return wanted.start - 1


def _rows(
    row: Trajectory, messages: Sequence[Message], learnt: Collection[int], trace: Trace, version: Version
) -> Iterator[dict[str, Any]]:
    """A row for each place. It opens with the version's prompt, which stands for the one that was recorded; what the
    agent's program told it later as a system message, such as the time, no chat template would show there."""
    config = version.config()
    opening = Message("system", config.system_prompt) if config.system_prompt else messages[0]
    opened = [opening.to_openai()] if opening.role == "system" else []
    spoken = [call_forms.write(each, config.form) if each.role == "assistant" else each for each in messages]
    written = [each.to_openai() for each in spoken]
    tools = openai_messages.chat_tools(config.tools or trace.tools)
    for at in learnt:
        if not (spoken[at].content.strip() or spoken[at].tool_calls):
            continue
        yield {
            "task_id": f"trajectory {row.trace_id}",
            "trajectory": row.trace_id,
            "cluster": row.cluster,
            "origin": "trajectory",
            "prompt": [*opened, *(each for each in written[:at] if each["role"] != "system")],
            "completion": [written[at]],
            **({"tools": tools} if tools else {}),
        }
