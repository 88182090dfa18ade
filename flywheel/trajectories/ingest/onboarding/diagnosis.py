"""Findings on what a new agent sends: arrived and how whole, refused and why, or nothing yet and what to look at.

`diagnose` reads what was stored and what was refused since a moment, and answers findings, the weightiest first. Other
projects' requests are told only to who may see those projects.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from django.db.models import Count
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.core import traces
from flywheel.trajectories.formats.otlp.spans import word
from flywheel.trajectories.formats.semantics.attribute_plans import reads
from flywheel.trajectories.formats.values.hostile_json import as_dict
from flywheel.trajectories.ingest.onboarding.refused_requests import WRONG_PATH
from flywheel.trajectories.models import Attempt, Batch, Source, Step, Trajectory
from flywheel.trajectories.store.stored_traces import complete, step_of

Tone = Literal["ok", "warn", "bad", "info"]

SETTLED_S = 4.0
"""A trajectory to which nothing came for so long is taken to be whole."""
PATIENCE_S = 20.0
"""After so long a silence it is time for advice."""
BATCHES, NEWEST = 20, 20
STEPS_READ = 200
SHOWN = 12
REASONS = 5
DIALECTS = ("gen_ai.", "llm.", "openinference.", "traceloop.", "ai.", "langfuse.", "langsmith.", "mlflow.", "logfire.")


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that a trajectory says or lacks."""

    name: str
    value: str
    is_there: bool
    hint: str = ""
    """How to send what is missing."""


@dataclass(slots=True)
class Finding:
    tone: Tone
    sentence: str
    """One sentence."""
    at: datetime | None = None
    age: str = ""
    """How long ago, in words."""
    advice: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Of what was rejected, as they were told to the sender."""
    facts: list[Fact] = field(default_factory=list)
    trajectory: Trajectory | None = None
    read: list[str] = field(default_factory=list)
    """Attributes of the spans that are read."""
    unread: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Diagnosis:
    findings: list[Finding]
    is_done: bool
    """Nothing more is to be expected: stop looking."""
    waiting: int = 0
    """Trajectories of the project with a proposal that nobody has decided about; counted when it is done."""


def diagnose(project: Project, *, since: datetime, user: User | None = None, now: datetime | None = None) -> Diagnosis:
    """Return the findings on requests to the project since this moment."""
    now = now or timezone.now()
    # The newest rows first, and then by time: an index gives them, however much a project holds.
    newest = Batch.objects.filter(project=project).order_by("-id")[:BATCHES]
    batches = [batch for batch in newest if batch.received_at >= since]
    best, calls = _best(project, since) if batches else (None, 0)
    found: list[Finding] = []
    if best is not None:
        found.append(_arrived(best, calls) if calls else _no_model_call(best))
    elif any(batch.inserted or batch.updated for batch in batches):
        found.append(Finding("ok", "Spans arrived for existing trajectories.", batches[0].received_at))
    elif any(batch.duplicate for batch in batches):
        said = "All of it was already stored."
        found.append(Finding("ok", said, batches[0].received_at))
    found += _rejected(batches)
    if batches and not found:
        found.append(_empty(batches[0]))
    is_good = any(batch.inserted or batch.updated or batch.duplicate for batch in batches)
    found += _refused(project, max(batch.received_at for batch in batches) if is_good else since)
    found += _elsewhere(project, since, user)
    if not found:
        found.append(_silence(since, now))
    for finding in found:
        finding.age = _age(now - finding.at) if finding.at else ""
    is_done = best is not None and calls > 0 and (now - best.changed_at).total_seconds() >= SETTLED_S
    return Diagnosis(found, is_done, _waiting(project) if is_done else 0)


def _waiting(project: Project) -> int:
    rows = Trajectory.objects.filter(project=project, label="", proposed_bucket__gt="")
    return rows.exclude(source__in=Source.ATTEMPTS).count()


# What arrived


def _best(project: Project, since: datetime) -> tuple[Trajectory | None, int]:
    """The new trajectory with the most model calls, and how many it has."""
    new = Trajectory.objects.filter(project=project, received_at__gte=since).exclude(source__in=Source.ATTEMPTS)
    rows = list(new.order_by("-id")[:NEWEST])
    said = Step.objects.filter(trajectory__in=rows, kind="assistant").values_list("trajectory_id")
    calls = dict(said.annotate(Count("pk")))
    best = max(rows, key=lambda row: (calls.get(row.pk, 0), row.pk), default=None)
    return best, calls.get(best.pk, 0) if best else 0


def _arrived(row: Trajectory, calls: int) -> Finding:
    steps = list(row.steps.order_by("position")[:STEPS_READ])
    complete(steps, [row])
    read = [step_of(step) for step in steps]
    spoken = [step for step in traces.speaking(read) if step.kind == "assistant"]
    # A tool shows by its own span, or by the model's call of it alone.
    tools = max(sum(step.kind == "tool" for step in steps), sum(len(step.tool_calls()) for step in spoken))
    has_content = any(step.input or step.output for step in spoken)
    ids = {step.span_id for step in steps}
    orphans = sum(bool(step.parent_id) and step.parent_id not in ids for step in steps)
    facts = [
        _stated("messages", has_content, CONTENT_HINT),
        Fact("tools", _count(tools, "call") if tools else "none called", True),
        _stated("tokens", row.tokens is not None, "send gen_ai.usage.input_tokens and output_tokens"),
        _stated("cost", row.cost_usd is not None, "send gen_ai.usage.cost or llm.cost.total"),
        _named("agent", row.agent_name, "send gen_ai.agent.name or service.name"),
        _named("version", row.version_label, "send gen_ai.agent.version or service.version"),
        _named("session", row.session_id, "send gen_ai.conversation.id or session.id"),
        _named("outcome", row.outcome, "send flywheel.outcome: success or failed"),
    ]
    if orphans and row.step_count <= STEPS_READ:
        waiting = "1 span names a parent" if orphans == 1 else f"{orphans} spans name a parent"
        facts.append(Fact("tree", f"{waiting} that has not come", False, "an outer span is sent when it ends"))
    said = f"{_count(row.step_count, 'step')}, {_count(calls, 'model call')}."
    return Finding("ok", said, row.changed_at, facts=facts, trajectory=row)


def _no_model_call(row: Trajectory) -> Finding:
    steps = list(row.steps.order_by("position")[:STEPS_READ])
    bodies = [step.body for step in steps if step.is_span]
    names = Counter(name for body in bodies for name in as_dict(body.get("attributes")))
    read = [name for name, _ in names.most_common() if reads(name)]
    unread = [name for name, _ in names.most_common() if not reads(name)]
    scopes = sorted({scope for body in bodies if (scope := word(as_dict(body.get("scope")), "name"))})
    advice = []
    if any(name.startswith(DIALECTS) for name in names):
        advice.append(
            "They carry attributes of an agent's telemetry, but none says that it is a model call:"
            " gen_ai.operation.name = chat does, or openinference.span.kind = LLM."
        )
    elif scopes:
        advice.append(
            f"They come from {', '.join(scopes[:5])}, which watches no model: add the instrumentation of your framework"
            " to the same tracer provider, before the client is made."
        )
    else:
        advice.append("A model call is known by gen_ai.operation.name = chat, or openinference.span.kind = LLM.")
    if any(step.kind in ("agent", "tool") for step in steps):
        advice.append(
            "An agent's or a tool's span is there: the calls inside may be sent by another provider, or later."
        )
    return Finding(
        "warn",
        f"{_count(row.step_count, 'span')} came, and none is a model call.",
        row.changed_at,
        advice=advice,
        trajectory=row,
        read=read[:SHOWN],
        unread=unread[:SHOWN],
    )


def _rejected(batches: Iterable[Batch]) -> list[Finding]:
    batch = next((batch for batch in batches if batch.rejected), None)
    if batch is None:
        return []
    what = f"{batch.rejected} of {_count(batch.received, 'span')}"
    said = f"200, but {what} {'was' if batch.rejected == 1 else 'were'} rejected."
    advice = ["Rejected spans are kept as they came; the others are stored."]
    reasons = [f"{item['at']}: {item['reason']}" for item in batch.problems[:REASONS]]
    return [Finding("warn", said, batch.received_at, advice=advice, reasons=reasons)]


def _empty(batch: Batch) -> Finding:
    advice = ["The exporter reaches this server. Is a span made and ended, and is it sampled?"]
    return Finding("warn", "200, but the request held no spans.", batch.received_at, advice=advice)


# What was refused


def _refused(project: Project, since: datetime) -> list[Finding]:
    mine = Attempt.objects.filter(project=project, at__gt=since).select_related("key")
    found = [_attempt(row) for row in mine.order_by("-at")[:REASONS]]
    strangers = Attempt.objects.filter(project=None, at__gt=since).order_by("-at")
    return found + [_attempt(row) for row in strangers[: 1 if found else 2]]


def _attempt(row: Attempt) -> Finding:
    name = f" with the key “{row.key.name}”" if row.key and row.status != 401 else ""
    advice = [ADVICE[row.status]] if row.status in ADVICE else []
    if row.reason == WRONG_PATH or row.status == 404:
        advice = [PATH_ADVICE]
    if row.project_id is None:
        if row.status == 401:
            advice = [HEADER_ADVICE]
        advice.append("It named no project, so it may have been somebody else's.")
    return Finding("bad", f"{row.status}{name}: {row.reason}.", row.at, advice=advice)


ADVICE = {
    401: "Make a new key here, and copy it whole.",
    403: "Make a key that may do this; which scope is needed stands with each snippet.",
    413: "Send smaller batches: OTEL_BSP_MAX_EXPORT_BATCH_SIZE=128, or send_batch_max_size in a Collector.",
    415: "Set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or http/json; compression is gzip, deflate or none.",
    400: "The body is not OTLP. Is the exporter another format's, such as Zipkin or Jaeger?",
    503: "This server had trouble; its log says what. Exporters send again by themselves.",
}
HEADER_ADVICE = (
    "The header reads Authorization: Bearer, a space, and the key. Only OTEL_EXPORTER_OTLP_HEADERS has %20 for the"
    " space; in code, in a Collector and in curl it is a space."
)
PATH_ADVICE = (
    "OTEL_EXPORTER_OTLP_ENDPOINT is the base address, to which /v1/traces is appended;"
    " OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used as it is and ends with /v1/traces."
)
CONTENT_HINT = (
    "most instrumentations leave content out until it is switched on:"
    " OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true, TRACELOOP_TRACE_CONTENT=true, recordInputs"
)


def _elsewhere(project: Project, since: datetime, user: User | None) -> list[Finding]:
    """Telemetry that went into another project that this person belongs to."""
    if user is None:
        return []
    others = user.projects().exclude(pk=project.pk)
    batch = (
        Batch.objects.filter(project__in=others, received_at__gte=since, key__isnull=False)
        .select_related("project", "key")
        .order_by("-received_at")
        .first()
    )
    if batch is None or batch.key is None:
        return []
    said = f"A request came with the key “{batch.key.name}” of another project: it is stored in {batch.project.name}."
    advice = ["The key decides which project it is. Use one that was made here."]
    return [Finding("warn", said, batch.received_at, advice=advice)]


def _silence(since: datetime, now: datetime) -> Finding:
    advice = []
    if now - since > timedelta(seconds=PATIENCE_S):
        advice = [
            "A batch processor sends every 5 s, and a script that ends before that sends nothing: call shutdown().",
            "Nothing at all means that this server was not reached: the agent logs where it tries to send. In a"
            " container 127.0.0.1 is the container itself, and FLYWHEEL_BIND says who is answered.",
        ]
    return Finding("info", "Waiting for the first request. Nothing has come since you opened this page.", advice=advice)


# Words


def _age(time: timedelta) -> str:
    seconds = max(0, int(time.total_seconds()))
    return f"{seconds} s ago" if seconds < 60 else f"{seconds // 60} m ago" if seconds < 3600 else "over an hour ago"


def _stated(name: str, is_there: bool, hint: str) -> Fact:
    return Fact(name, "yes" if is_there else "no", is_there, hint)


def _named(name: str, value: str | None, hint: str) -> Fact:
    return Fact(name, value or "missing", bool(value), hint)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
