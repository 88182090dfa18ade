"""Make a version from what production sends: what its newest runs have in common, and the runs that are then its own.

`proposal` reads and writes nothing; a person or a program looks at it and has `make` make the version.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import SequenceMatcher
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.accounts.project_settings import provider_keys
from flywheel.agents.models import Agent, Version
from flywheel.agents.registration import make_version
from flywheel.agents.version_content import DEFAULT_SAMPLING, MAX_TOKENS, MAX_TOOLS, OPENAI, VersionContent
from flywheel.core import traces
from flywheel.core.digests import canonical
from flywheel.core.traces import call_forms
from flywheel.core.traces.tooling import check_definitions
from flywheel.edge.refusals import Missing, Refused
from flywheel.trajectories.formats.otlp import otlp_logs
from flywheel.trajectories.formats.semantics import otlp_traces, span_meaning
from flywheel.trajectories.models import ReportedVersion, Source, Step, Trajectory
from flywheel.trajectories.store.stored_traces import complete, step_of

RUNS = 100
"""The newest runs that are read."""
LABELS = 8
"""Reported versions that are offered beside the newest."""
LINKED = 20_000
"""Stored runs that are given to the version at once, the newest; older ones stay as they are."""
ALIKE = 0.9
"""The share of words that two prompts have in common when only what changes per run differs."""
ANSWER_TOKENS = 4096
"""Where no run says how long an answer may be."""
_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_WORDS = re.compile(r"[^\s]+")
_PROVIDERS = {"openai": "https://api.openai.com/v1"}


@dataclass(frozen=True, slots=True)
class Reported:
    """A version as runs report it; an empty label is that of runs that report none."""

    label: str
    runs: int

    @property
    def words(self) -> str:
        return f"version {self.label}" if self.label else "no version"


@dataclass(slots=True)
class Proposal:
    """The parts that the newest runs have in common, and how many of them have each."""

    agent: Agent
    reported: Reported
    """What they report, and how many runs of it are stored without a version."""
    others: list[Reported]
    runs: int
    """Runs that were read."""
    first: datetime
    last: datetime
    content: dict[str, Any] = field(default_factory=dict)
    """Fields of `agents.version_content.VersionContent`."""
    notes: list[dict[str, Any]] = field(default_factory=list)
    """`{"about", "runs", "of", "words"}` for each part: in how many of the runs it was so, and what is to be known."""


@dataclass(slots=True)
class _Run:
    """One run's beginning, as it asked its model."""

    prompt: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    provider: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    output: list[traces.Message] = field(default_factory=list)


def proposal(agent: Agent, label: str | None = None) -> Proposal:
    """Read off the newest production runs what the agent is made of; with `label`, off those that report it.

    Left to itself it takes the newest runs that belong to no version yet. Raises Missing where there are none.
    """
    runs = _runs(agent).filter(source=Source.PRODUCTION)
    newest = runs.filter(version=None).first() or runs.first()
    if newest is None:
        raise Missing(f"no production runs of {agent} yet; connect it first", field="agent")
    label = newest.version_label if label is None else label
    rows = list(runs.filter(version_label=label)[:RUNS])
    if not rows:
        raise Missing(f"no production run of {agent} reports version {label[:100]!r}", field="label")
    waiting = Counter(runs.filter(version=None)[: 10 * RUNS].values_list("version_label", flat=True))
    reported = Reported(label, runs.filter(version_label=label, version=None).count())
    others = [Reported(name, count) for name, count in waiting.most_common(LABELS + 1) if name != label][:LABELS]
    found = Proposal(agent, reported, others, len(rows), rows[-1].started_at, rows[0].started_at)
    read = _beginnings(rows)
    found.content = {
        "system_prompt": _prompt(found, [run.prompt for run in read]),
        "tools": _tools(found, [run.tools for run in read], rows),
        **_model(found, read),
        "sampling": _sampling(found, [run.params for run in read]),
        "form": _form(read),
    }
    return found


@transaction.atomic
def make(
    *,
    agent: Agent,
    actor: Actor,
    content: VersionContent,
    label: str,
    is_linked: bool,
    parent: Version | None = None,
    note: str = "",
) -> tuple[Version, bool, int]:
    """Make the version; with `is_linked`, runs that report `label` and belong to no version become its own, and so do
    later ones. Return it, whether it is new, and how many stored runs were linked. Raises Refused."""
    version, is_new = make_version(agent=agent, actor=actor, content=content, parent=parent, note=note)
    return version, is_new, link(version=version, label=label, actor=actor) if is_linked else 0


@transaction.atomic
def link(*, version: Version, label: str, actor: Actor) -> int:
    """Runs that report `label` are the version's from now on, stored ones that belong to none too; return how many."""
    if len(label) > 100:
        raise Refused(f"has {len(label)} characters, at most 100 are kept", field="label")
    agent = version.agent
    ReportedVersion.objects.update_or_create(
        agent=agent, label=label, defaults={"version": version, "created_by": actor.user}
    )
    waiting = _runs(agent).filter(version_label=label, version=None).exclude(source__in=Source.ATTEMPTS)
    # One that is being written is resolved by whoever writes it.
    newest = waiting.select_for_update(skip_locked=True).values_list("pk", flat=True)
    linked = Trajectory.objects.filter(pk__in=list(newest[:LINKED])).update(version=version)
    actor.record(
        project=agent.project, action="trajectories.link_version", subject=version, label=label, trajectories=linked
    )
    return linked


def _runs(agent: Agent) -> QuerySet[Trajectory]:
    """The agent's runs, newest first, by the index of the project's list."""
    return Trajectory.objects.filter(project=agent.project, agent=agent).order_by("-started_at", "-pk")


def _beginnings(rows: Sequence[Trajectory]) -> list[_Run]:
    """The first model call of each run, newest run first; where the prompt is a step of its own, with that."""
    steps = Step.objects.filter(trajectory__in=rows, kind__in=("system", "assistant"))
    first = list(steps.order_by("trajectory_id", "kind", "position").distinct("trajectory_id", "kind"))
    complete(first, rows)
    found = {row.pk: _Run(tools=row.tools) for row in rows}
    for step in first:
        run, whole = found[step.trajectory_id], step_of(step)
        if step.kind == "system":
            run.prompt = run.prompt or _texts(whole.output)
            continue
        run.prompt = run.prompt or _texts(message for message in whole.input if message.role == "system")
        run.model, run.output = whole.model, whole.output
        run.params = whole.sampling.get("params", {})
        if step.is_span:
            ids = {"trace_id": "", "span_id": step.span_id, "parent_id": step.parent_id}
            span = otlp_logs.joined(otlp_traces.from_json(step.body, **ids), step.log_events)
            run.provider = str(
                span.attributes.get("gen_ai.provider.name") or span.attributes.get("gen_ai.system") or ""
            )
            run.tools = span_meaning.tools(span) or run.tools  # in the order in which they were written
    return [found[row.pk] for row in rows]


def _form(runs: Iterable[_Run]) -> str | None:
    """The form in which the newest call among the answers is written; None where they call nothing."""
    said = [message for run in runs for message in run.output if call_forms.as_native(message).tool_calls]
    if not said or said[0].tool_calls:
        return call_forms.NATIVE if said else None
    return next(form for form in call_forms.TEXT_FORMS if call_forms.read(said[0], form).tool_calls)


def _texts(messages: Iterable[traces.Message]) -> str:
    return "\n\n".join(message.content for message in messages if message.content)


def _prompt(found: Proposal, prompts: list[str]) -> str:
    """The prompt of most runs, the newest wording of it where it differs per run by a date or a name."""
    groups: list[list[str]] = []
    for text, times in Counter(filter(None, prompts)).items():
        group = next((group for group in groups if _is_alike(group[0], text)), None)
        if group is None:
            groups.append(group := [])
        group += [text] * times
    if not groups:
        _note(found, "System prompt", 0, "No run recorded one.")
        return ""
    group = max(groups, key=len)
    chosen, wordings = group[0], list(dict.fromkeys(group))
    words = ""
    if len(wordings) > 1:
        one, other = _difference(chosen, wordings[1])
        words = (
            f"It differs between runs in {len(wordings)} wordings, such as {one!r} and {other!r}. The newest is filled "
            "in. A version's prompt is the same for every run: put what changes into the first user message."
        )
    _note(found, "System prompt", len(group), words)
    return chosen


def _is_alike(one: str, other: str) -> bool:
    first, second = _WORDS.findall(one), _WORDS.findall(other)
    if len(first) + len(second) < 10 or min(len(first), len(second)) < ALIKE * max(len(first), len(second)):
        return False
    return SequenceMatcher(None, first, second, autojunk=False).ratio() >= ALIKE


def _difference(one: str, other: str) -> tuple[str, str]:
    """The first place at which two texts differ, in words."""
    first, second = _WORDS.findall(one), _WORDS.findall(other)
    for kind, start, end, from_, to in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if kind != "equal":
            return " ".join(first[start:end])[:80], " ".join(second[from_:to])[:80]
    return "", ""  # they differ in white space alone


def _tools(found: Proposal, tools: list[list[dict[str, Any]]], rows: Sequence[Trajectory]) -> list[dict[str, Any]]:
    keys = [canonical(given) for given in tools]
    usable = {key: given for key, given in zip(keys, tools, strict=True) if given and len(given) <= MAX_TOOLS}
    usable = {key: given for key, given in usable.items() if not check_definitions(given)}  # many runs bring the same
    if not usable:
        names = sorted({name for row in rows for name in row.tool_names})
        called = f" {', '.join(names[:10])} {'was' if len(names) == 1 else 'were'} called." if names else ""
        _note(found, "Tools", 0, f"No run recorded tool definitions that can be used.{called}")
        return []
    ((key, times),) = Counter(key for key in keys if key in usable).most_common(1)
    others = len(usable) - 1
    _note(found, "Tools", times, f"{others} other set{'s' if others > 1 else ''} of tools seen." if others else "")
    return usable[key]


def _model(found: Proposal, read: list[_Run]) -> dict[str, Any]:
    named = Counter(run.model for run in read if run.model)
    model, times = named.most_common(1)[0] if named else ("", 0)
    project = found.agent.project
    server = _server(project, next((run.provider for run in read if run.model == model), ""))
    missing = "" if server.get("base_url") else "Enter the address of its server: no run says where it is asked."
    others = ", ".join(name for name, _ in named.most_common(4)[1:])
    words = [f"Others: {others}." if others else "", missing if model else "No run recorded a model."]
    _note(found, "Model", times, " ".join(filter(None, words)))
    return {"base_model": model, "endpoint": {"kind": OPENAI, "model": model, **server}}


def _server(project: Project, provider: str) -> dict[str, str]:
    """Where the model is asked: by the project's gateway, or else by the provider that the spans name."""
    if upstream := project.upstream:
        return {name: upstream[name] for name in ("base_url", "api_key_env") if upstream.get(name)}
    address = _PROVIDERS.get(provider.lower(), "")
    key = f"{provider.upper()}_API_KEY"
    if not address:
        return {}
    return {"base_url": address} | ({} if provider_keys.refusal(project.pk, key, address) else {"api_key_env": key})


def _sampling(found: Proposal, params: list[dict[str, Any]]) -> dict[str, Any]:
    """Each setting as most runs send it; where none does, what the provider's own default is said to be."""
    chosen: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "max_tokens": ANSWER_TOKENS}
    unsent, least = [], found.runs
    for name in DEFAULT_SAMPLING:
        keys = _TOKENS if name == "max_tokens" else (name,)
        sent = Counter(value for row in params for key in keys if _is_setting(name, value := row.get(key)))
        if sent:
            chosen[name], times = sent.most_common(1)[0]
            least = min(least, times)
        else:
            unsent.append(name)
    words = f"Not recorded: {', '.join(unsent)}; defaults are filled in." if unsent else ""
    _note(found, "Sampling", 0 if len(unsent) == len(DEFAULT_SAMPLING) else least, words)
    return chosen


def _is_setting(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if name == "max_tokens":
        return isinstance(value, int) and 1 <= value <= MAX_TOKENS
    return 0 <= value <= 5 if name == "temperature" else 0 < value <= 1


def _note(found: Proposal, about: str, runs: int, words: str) -> None:
    found.notes.append({"about": about, "runs": runs, "of": found.runs, "words": words})
