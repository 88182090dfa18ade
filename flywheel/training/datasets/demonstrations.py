"""Production trajectories that are called good as demonstrations, or good and bad ones with a thumb or as scored
attempts, frozen as a dataset.

    look(wanted)                    what a dataset of the choice would be, by its newest trajectories; writes nothing
    Gathered(wanted)                all of it, read a few at a time by the worker that builds it (`build_jobs`)

A row is one thing that the agent said, with all that came before it as its prompt, and loss on nothing but that. So a
step that failed is masked: it stands in the prompts of what follows and is no row's completion. Of a trajectory that is
called bad one answer has a thumb down: the step that a reviewer marked, or else the last, which the user judged. With
scores each answer of a trajectory has that of the whole, and all are compared with the mean of all. Rows are written
for a version: they open with its prompt, name its tools and make calls in its form. Nothing is taken of a trajectory
whose session, itself or beginning the project measures with.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from typing import Any

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
from flywheel.edge.refusals import Refused, at_field, check_choice
from flywheel.failures.models import Failure
from flywheel.training.datasets import attempt_scores, dataset_builder
from flywheel.training.datasets.attempt_scores import AttemptScores
from flywheel.training.datasets.dataset_builder import written_for
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.models import Dataset
from flywheel.trajectories.formats.messages.message_turns import of_score
from flywheel.trajectories.import_export.trajectory_export import selection
from flywheel.trajectories.models import Feedback, Label, Source, Trajectory
from flywheel.trajectories.store.stored_traces import traces_of

MOST = 10_000
"""Trajectories of a dataset, the newest that are chosen."""
LOOKED_AT = 200
"""Of these, while somebody waits."""
FIRST = 5
"""Rows that are shown of them."""
AT_ONCE = 50
"""Trajectories that are read together."""
NAMED = 20
"""Left-out trajectories that are named for each reason."""
CUT = ("length", "max_tokens", "content_filter")
"""Reasons to finish of an answer that is not whole."""

GOOD = {
    "good": "reviewers or feedback rate it as good",
    "filter": "it matches the filter",
    "thumbs": "reviewers or feedback rate it as good or bad",
    "scores": "reviewers or feedback score it",
}
"""What makes a trajectory good enough to imitate; or with `thumbs` good or bad, when each answer has its thumb; or with
`scores` better or worse, when each answer has the score of the whole."""
KINDS = {"thumbs": Dataset.Kind.THUMBS, "scores": Dataset.Kind.SCORED}
LEFT_OUT = {
    "rollout": "a rollout; data is made of those under Rollouts",
    "agent": "another agent’s",
    "failure": "a failure, and no message of the agent is marked as the failing one",
    "not_good": "not rated good, or rated bad",
    "no_thumb": "not rated, or rated good and bad",
    "no_score": "not rated",
    "measured": "its session, itself or its beginning is in a held-out or sealed task",
    "nothing": "nothing to learn from that place on",
    "too_long": "its answers, each with all that came before it, are more than a dataset may have",
    "duplicate": "says the same as others do",
}
"""Why a trajectory gives no row."""
UNTOLD: dict[str, str] = {Dataset.Kind.THUMBS: "no_thumb", Dataset.Kind.SCORED: "no_score"}
"""Which of these it is where nobody says what it is worth, if not `not_good`."""


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
    up_to: int = 0
    """Key of the newest trajectory that there was when it was chosen; 0 for all."""


class Gathered:
    """The rows of a choice, and what became of all that were looked at so far. Of rows only digests are held."""

    def __init__(self, wanted: Wanted, most: int = MOST) -> None:
        """Looks at the `most` newest that are chosen. Raises Refused for a filter that cannot be read, and for what
        cannot be chosen."""
        self.choice = wanted
        self.project = wanted.version.agent.project
        check_choice(wanted.good, GOOD, field="good")
        if wanted.start < 1:
            raise Refused(f"{wanted.start} is no message of the agent; the first is 1", field="start")
        with at_field("q"):
            rows = selection(self.project.pk, wanted.q, wanted.ids)
        rows = rows.filter(pk__lte=wanted.up_to) if wanted.up_to else rows
        self.keys = list(rows.order_by("-started_at", "-pk").values_list("pk", flat=True)[:most])
        self.beyond = max(0, rows.count() - most) if len(self.keys) == most else 0
        """Older ones that are not looked at, for that or because the rows are as many as a dataset may have."""
        self.chosen = 0
        """Trajectories that were looked at."""
        self.taken = 0
        """Rows."""
        self.characters = 0
        """About how many the rows take."""
        self.used: list[str] = []
        """Trace ids of those that gave a row."""
        self.masked = 0
        """Messages of the agent that stand in prompts only: they failed, were cut off, or were somebody else's."""
        self.repeated = 0
        """Rows that others say too."""
        self.tokens = self.learnt_tokens = self.native_calls = 0
        """About how many the rows hold, prompts included, and how many carry loss."""
        self.left_out: dict[str, dict[str, Any]] = {}
        """How many by reason, a key of `LEFT_OUT`, and the first by trace id: `{"count", "first"}`."""
        self.thumbs = Counter[str]()
        """Rows by their thumb, as `dataset_builder.thumbs_of` counts them."""
        self.scores = AttemptScores()
        self._measured, self._seen = Measured(self.project), set[bytes]()

    @property
    def reasons(self) -> list[dict[str, Any]]:
        """`{"reason", "words", "count", "first"}`, the first ones by trace id."""
        return reasons_shown(self.left_out)

    @property
    def kind(self) -> str:
        return KINDS.get(self.choice.good, Dataset.Kind.SFT)

    @property
    def done(self) -> int:
        return self.chosen

    def rows(self, tell: Callable[[], None] = lambda: None) -> Iterator[dict[str, Any]]:
        """Read the trajectories, and `tell` after each. Rows of one share their messages."""
        for start in range(0, len(self.keys), AT_ONCE):
            keys = self.keys[start : start + AT_ONCE]
            found = Trajectory.objects.in_bulk(keys)
            part = [found[key] for key in keys if key in found]
            good = dict(self._good(part))
            failing = dict(Failure.objects.filter(trajectory__in=good, current=True).values_list("trajectory", "step"))
            traces = traces_of(good)
            for at, row in enumerate(part):
                if row in good:
                    rows = self._rows_of(row, traces[row.pk], failing.get(row.pk, ""), good[row])
                    if rows is None:
                        self.beyond += len(self.keys) - start - at
                        return
                    yield from rows
                self.chosen += 1
                tell()

    def _leave_out(self, reason: str, row: Trajectory) -> list[dict[str, Any]]:
        """Count it. Returns that it has no rows."""
        told = self.left_out.setdefault(reason, {"count": 0, "first": []})
        told["count"] += 1
        told["first"] += [row.trace_id][: NAMED - len(told["first"])]
        return []

    def _good(self, part: Sequence[Trajectory]) -> Iterator[tuple[Trajectory, float]]:
        """Those that may be learnt from, as far as their own row and what is said of them tell, and what they are
        worth: 1 for good, 0 for bad."""
        read = _scores if self.kind == Dataset.Kind.SCORED else _feedback
        said = read(self.project, [row.trace_id for row in part if row.feedback_count])
        steps = Failure.objects.filter(trajectory__in=part, current=True).exclude(step="")
        marked = set(steps.values_list("trajectory", flat=True))
        agent = self.choice.version.agent_id
        for row in part:
            if row.source in Source.ATTEMPTS:
                self._leave_out("rollout", row)
            elif row.agent_id not in (None, agent):
                self._leave_out("agent", row)
            elif row.label == Label.FAILURE and row.pk not in marked and self.kind != Dataset.Kind.SCORED:
                self._leave_out("failure", row)
            elif (worth := self._worth(row, said.get(row.trace_id, set()))) is None:
                self._leave_out(UNTOLD.get(self.kind, "not_good"), row)
            elif self._measured.has_source(row):
                self._leave_out("measured", row)
            else:
                yield row, worth

    def _worth(self, row: Trajectory, said: Collection[Any]) -> float | None:
        """Its worth, of which a person's word on the whole decides before feedback; None for one that this choice does
        not take."""
        if self.choice.good == "filter":
            return 1.0
        if self.kind == Dataset.Kind.SFT:
            return 1.0 if row.label == Label.PASS or set(said) == {"success"} else None
        if row.label in (Label.PASS, Label.FAILURE):
            return float(row.label == Label.PASS)
        if self.kind == Dataset.Kind.SCORED:
            return fmean(said) if said else None
        return float("success" in said) if len(said) == 1 else None

    def _rows_of(self, row: Trajectory, trace: Trace, failing: str, worth: float) -> list[dict[str, Any]] | None:
        """The rows of a trajectory, counted, or none and why that is; None where there is no room for them."""
        messages, said = _answers_in(trace)
        if self._measured.has_beginning(messages):
            return self._leave_out("measured", row)
        masked, wrong = _failed(trace, said), said[-1][0] if said else None
        if failing and self.kind != Dataset.Kind.SCORED:  # a score is of the whole
            if (wrong := _place_of(failing, trace, said)) is None:
                return self._leave_out("failure", row)
            masked.add(wrong)
        first = _first(self.choice, row, said)
        spoken = [at for at, _ in said[first:]] if first is not None else []
        is_one = self.kind == Dataset.Kind.THUMBS and not worth
        learnt = [at for at in spoken if (at == wrong if is_one else at not in masked)]
        made = list(_rows(row, messages, learnt, trace, self.choice.version))
        rows = [each for _, each in made]
        if self.kind == Dataset.Kind.THUMBS:
            rows = [each | {"label": bool(worth)} for each in rows]
        elif self.kind == Dataset.Kind.SCORED:
            told, steps = {"score": worth, "group": "", "attempt": row.trace_id}, dict(said)
            rows = [each | told | _sampled(each, messages, at, steps[at]) for at, each in made]
        size = dataset_builder.characters(rows)
        if size > dataset_builder.MOST_CHARACTERS or len(rows) > dataset_builder.MOST_ROWS:
            return self._leave_out("too_long", row)
        if (
            self.characters + size > dataset_builder.MOST_CHARACTERS
            or self.taken + len(rows) > dataset_builder.MOST_ROWS
        ):
            return None
        distinct = {dataset_builder.row_digest(each): each for each in rows}
        fresh = [each for key, each in distinct.items() if key not in self._seen]
        self._seen.update(distinct)
        self.repeated += len(distinct) - len(fresh)
        if not fresh:
            return self._leave_out("duplicate" if distinct else "nothing", row)
        self.used.append(row.trace_id)
        self.masked += sum(message.role == "assistant" for message in messages) - len(learnt)
        self.taken += len(fresh)
        self.characters += dataset_builder.characters(fresh)
        self.tokens += dataset_builder.tokens(fresh)
        self.learnt_tokens += dataset_builder.tokens(fresh, ["completion"])
        self.native_calls += dataset_builder.native_calls(fresh)
        self.thumbs += dataset_builder.thumbs_of(fresh)
        self.scores.add(fresh)
        return fresh

    def refuse_nothing(self) -> None:
        """Raise Refused where no row was taken."""
        if not self.taken:
            said = "; ".join(f"{each['count']}: {each['words']}" for each in self.reasons) or "no trajectory is chosen"
            raise Refused(f"nothing is left to learn from ({said})", field="q")

    @property
    def report(self) -> dict[str, Any]:
        """Say what became of the trajectories that were looked at so far, as JSON."""
        return {
            "kind": self.kind,
            "rows": self.taken,
            "thumbs": dict(self.thumbs),
            "scores": self.scores.recipe,
            "trajectories": len(self.used),
            "chosen": self.chosen,
            "beyond": self.beyond,
            "masked": self.masked,
            "left_out_trajectories": self.left_out,
            "tokens": self.tokens,
            "learnt_tokens": self.learnt_tokens,
            "duplicates": self.repeated,
        }

    @property
    def recipe(self) -> dict[str, Any]:
        """Say what a dataset of it remembers of where it comes from."""
        wanted = self.choice
        return {
            **{name: value for name, value in self.report.items() if name not in ("kind", "rows")},
            "filter": wanted.q if not wanted.ids else "",
            "by_hand": len(wanted.ids),
            "good": wanted.good,
            "start": wanted.start,
            "from_traces": self.used,
            "native_calls": self.native_calls,
            **written_for(wanted.version),
            **dict.fromkeys(("tasks", "from_failures", "from_rollouts", "synthetic"), 0),
        }


def reasons_shown(left_out: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Say what a dataset of trajectories left out, in the order in which it was asked."""
    return [{"reason": name, "words": LEFT_OUT[name], **left_out[name]} for name in LEFT_OUT if name in left_out]


def look(wanted: Wanted) -> tuple[Gathered, list[dict[str, Any]]]:
    """Read the newest `LOOKED_AT` trajectories of a choice; returns what became of them, and their first rows. Raises
    Refused as `Gathered` does."""
    found = Gathered(wanted, LOOKED_AT)
    rows = found.rows()
    first = list(islice(rows, FIRST))
    for _ in rows:
        pass
    return found, first


def _feedback(project: Project, trace_ids: Collection[str]) -> dict[str, set[str]]:
    """Read what feedback that holds now says of each whole trajectory: `success`, `failed`, or both."""
    rows = Feedback.objects.filter(project=project, trace_id__in=trace_ids, current=True, span_id="")
    found: dict[str, set[str]] = {}
    for trace_id, value, score in rows.values_list("trace_id", "value", "score"):
        if outcome := of_score(value) or of_score(score):
            found.setdefault(trace_id, set()).add(outcome)
    return found


def _scores(project: Project, trace_ids: Collection[str]) -> dict[str, list[float]]:
    """Read the scores from 0 to 1 in feedback that holds now on each whole trajectory; words are 1 or 0."""
    rows = Feedback.objects.filter(project=project, trace_id__in=trace_ids, current=True, span_id="").order_by("pk")
    found: dict[str, list[float]] = {}
    for trace_id, value, score in rows.values_list("trace_id", "value", "score"):
        if score is not None and 0 <= score <= 1:
            found.setdefault(trace_id, []).append(score)
        elif outcome := of_score(value) or of_score(score):
            found.setdefault(trace_id, []).append(float(outcome == "success"))
    return found


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
) -> Iterator[tuple[int, dict[str, Any]]]:
    """A row for each place, with it. It opens with the version's prompt, which stands for the one that was recorded;
    what the agent's program told it later as a system message, such as the time, no chat template would show there."""
    config = version.config()
    opening = Message("system", config.system_prompt) if config.system_prompt else messages[0]
    opened = [opening.to_openai()] if opening.role == "system" else []
    spoken = [call_forms.write(each, config.form) if each.role == "assistant" else each for each in messages]
    written = [each.to_openai() for each in spoken]
    tools = openai_messages.chat_tools(config.tools or trace.tools)
    for at in learnt:
        if not (spoken[at].content.strip() or spoken[at].tool_calls):
            continue
        made = {
            "task_id": f"trajectory {row.trace_id}",
            "trajectory": row.trace_id,
            "cluster": row.cluster,
            "origin": "trajectory",
            "prompt": [*opened, *(each for each in written[:at] if each["role"] != "system")],
            "completion": [written[at]],
            **({"tools": tools} if tools else {}),
        }
        yield at, made


def _sampled(row: Mapping[str, Any], messages: Sequence[Message], at: int, step: Step) -> dict[str, Any]:
    """The tokens and log-probabilities of a row's answer, where it is all that its step said, and what was said before
    is what the row shows: after another prompt they would have been others."""
    found = attempt_scores.sampled(step.sampling) if len(step.output) == 1 else {}
    is_same = bool(found) and row["prompt"] == [message.to_openai() for message in messages[:at]]
    return found if is_same else {}
