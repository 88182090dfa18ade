"""Trying fixes that need no training: drafts are asked the train tasks, and the best of them the held-out ones.

    trial, is_new = start(wanted, actor)    versions, and an eval of each and of their parent on the train tasks
    measure(trial, actor)                   the best one's eval on the held-out tasks; its end makes a candidate

The first step asks train tasks alone. Which draft is best was chosen on them, so its gain there is flattered by the
choice; the held-out tasks, which had no part in it, decide (docs/design/fixes.md).
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.agents.registration import make_version
from flywheel.agents.version_content import DEFAULT_SAMPLING, VersionContent, check_sampling
from flywheel.core import verifiers
from flywheel.core.envs.kinds import KINDS
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused, Stale, at_field
from flywheel.environments.models import Split, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.evals.runs import submission
from flywheel.evals.runs.submission import RunSettings
from flywheel.failures.buckets import bucket_definitions
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.fixes import example_choice, trial_results
from flywheel.training.fixes.example_choice import added_text, refuse_measured
from flywheel.training.models import FixDraft, FixTrial

MOST_DRAFTS = 8
LONGEST_NAME = 60
LONGEST_PROMPT = 200_000
"""Characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftContent:
    """Changes of a draft to its parent; None and nothing leave it as it is."""

    name: str
    system_prompt: str | None = None
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """Of tools, by their names. Their schemas stay."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Those of temperature, top_p and max_tokens that are other than the parent's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRequest:
    key: uuid.UUID
    bucket: str
    parent: Version
    task_set: TaskSet
    drafts: Sequence[DraftContent]
    settings: RunSettings = submission.USUAL


def start(wanted: TrialRequest, actor: Actor) -> tuple[FixTrial, bool]:
    """Make the drafts versions and queue their evals on the train tasks. Returns the trial, and whether it is new.

    Raises Refused, and nothing was made then.
    """
    project = wanted.task_set.project
    existing = FixTrial.objects.filter(project=project, idempotency_key=wanted.key).first()
    if existing is not None:
        return existing, False
    if wanted.bucket not in bucket_definitions.every(project):
        raise Refused(f"there is no category {wanted.bucket[:100]!r}", field="bucket")
    contents = _contents(wanted)
    examples = example_choice.shown_in([each.system_prompt for each in contents], wanted.task_set, wanted.parent)
    with transaction.atomic():
        # Two at once with one key make one: the second waits here, and finds the first.
        Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        if existing := FixTrial.objects.filter(project=project, idempotency_key=wanted.key).first():
            return existing, False
        parent_eval = _eval_of(wanted.parent, wanted, actor, "parent")
        trial = FixTrial.objects.create(
            project=project,
            idempotency_key=wanted.key,
            bucket=wanted.bucket,
            parent=wanted.parent,
            task_set=wanted.task_set,
            parent_eval=parent_eval,
            created_by=actor.user,
        )
        FixDraft.objects.bulk_create(
            _draft(trial, place, contents[place], examples[place], wanted, actor) for place in range(len(contents))
        )
        actor.record(
            project=project,
            action="training.try_fix",
            subject=trial,
            bucket=wanted.bucket,
            parent=str(wanted.parent),
            task_set=str(wanted.task_set),
            drafts=len(wanted.drafts),
        )
    return trial, True


def measure(trial: FixTrial, actor: Actor) -> FixTrial:
    """Have the best draft attempt the held-out tasks, and its parent where it has not. Asked again, the same trial.

    Raises Refused where no draft is better than the parent, Stale where an eval is not finished.
    """
    with transaction.atomic():
        trial = FixTrial.objects.select_for_update().get(pk=trial.pk)
        if trial.evaluation_id is not None:
            return trial
        found = trial_results.results_of(trial)
        if not found.is_over:
            raise Stale(f"{trial} is not over: every eval on its train tasks must have succeeded first")
        best = found.best
        if best is None:
            raise Refused("no draft solves more of the train tasks than its parent does; write others first")
        refuse_measured_draft(trial.parent, best.draft.version)
        trial.evaluation = _held_out(trial, best.draft.evaluation, actor, "held-out")
        trial.baseline = _held_out(trial, trial.parent_eval, actor, "baseline")
        trial.measured_by = actor.user
        trial.save()
        actor.record(
            project=trial.project, action="training.measure_fix", subject=trial, version=str(best.draft.version)
        )
    return trial


def equal_eval(version: Version, task_set: TaskSet, split: str, settings: RunSettings) -> EvalRun | None:
    """The newest eval that ended well and asked just this in just this way; it need not be asked again."""
    rows = EvalRun.objects.filter(
        version=version,
        task_set=task_set,
        split=split,
        state=State.SUCCEEDED,
        samples=settings.samples,
        seed=settings.seed,
        engine=settings.engine,
        sampling=submission.sampling_of(version, settings.sampling),
        verifier_digest=verifiers.digest(task_set.environment_version.verifier),
    )
    return rows.exclude(first_request={}).order_by("-pk").first()


def equal_or_new(
    key: uuid.UUID, version: Version, task_set: TaskSet, split: str, settings: RunSettings, actor: Actor
) -> EvalRun:
    """An eval that asks just this in just this way: the one that there is, or a new one of this key. Raises Refused."""
    if found := equal_eval(version, task_set, split, settings):
        return found
    run, _ = submission.submit(key=key, version=version, task_set=task_set, actor=actor, split=split, settings=settings)
    return run


def _held_out(trial: FixTrial, like: EvalRun, actor: Actor, part: str) -> EvalRun:
    """An eval of the same version in the same way on the held-out tasks."""
    key, settings = _key(trial.idempotency_key, part), RunSettings.of(like)
    return equal_or_new(key, like.version, trial.task_set, Split.HELD_OUT, settings, actor)


def _contents(wanted: TrialRequest) -> list[VersionContent]:
    """Check the drafts against their parent, each other and what is measured. Raises Refused."""
    if not 1 <= len(wanted.drafts) <= MOST_DRAFTS:
        raise Refused(f"{len(wanted.drafts)} drafts; expected from 1 to {MOST_DRAFTS}", field="drafts")
    measured = Measured(wanted.task_set.project)
    found: list[VersionContent] = []
    for place, draft in enumerate(wanted.drafts):
        at = f"drafts.{place}"
        if not draft.name.strip() or len(draft.name) > LONGEST_NAME:
            raise Refused(f"name the draft, in {LONGEST_NAME} characters at most", field=f"{at}.name")
        content = content_of(draft, wanted.parent, wanted.task_set, measured, f"{at}.")
        if content in found:
            raise Refused(f"is the same as draft {found.index(content) + 1}", field=f"{at}.system_prompt")
        found.append(content)
    return found


def content_of(
    draft: DraftContent, parent: Version, task_set: TaskSet, measured: Measured, at: str = ""
) -> VersionContent:
    """The parent's content with a draft's changes. Raises Refused, at a field whose name begins with `at`."""
    before = VersionContent.of(parent)
    with at_field(f"{at}descriptions"):
        tools = _tools(parent, task_set, draft.descriptions)
    prompt = before.system_prompt if draft.system_prompt is None else draft.system_prompt
    if len(prompt) > LONGEST_PROMPT:
        raise Refused(f"has {len(prompt)} characters, {LONGEST_PROMPT} at most", field=f"{at}system_prompt")
    if "\x00" in prompt:
        raise Refused("has a NUL character, which cannot be stored; take it out", field=f"{at}system_prompt")
    content = replace(before, system_prompt=prompt, tools=tools, sampling=_sampling(parent, draft.sampling, at))
    if content == before:
        raise Refused(f"changes nothing of {parent}", field=f"{at}system_prompt")
    refuse_measured([added_text(before.system_prompt, prompt)], measured, field=f"{at}system_prompt")
    refuse_measured(list(draft.descriptions.values()), measured, field=f"{at}descriptions")
    return content


def refuse_measured_draft(parent: Version, version: Version) -> None:
    """Raise Refused where what a version says beyond its parent holds a request that is measured with: more may be held
    out by now than when it was made."""
    measured = Measured(parent.agent.project)
    prompt = added_text(parent.system_prompt, version.system_prompt)
    refuse_measured([prompt], measured, field="system_prompt")
    refuse_measured(_changed_descriptions(parent, version), measured, field="descriptions")


def _tools(parent: Version, task_set: TaskSet, descriptions: Mapping[str, str]) -> list[dict[str, Any]]:
    """The parent's tools with these descriptions. Raises Refused."""
    tools: list[dict[str, Any]] = parent.tools
    before = {tool["name"]: tool.get("description", "") for tool in tools}
    if unknown := sorted(set(descriptions) - set(before)):
        raise Refused(f"{parent} has no tool {unknown[0][:100]!r}")
    changed = {name: text for name, text in descriptions.items() if text != before[name]}
    environment = task_set.environment_version.environment
    if changed and not KINDS[environment.kind].from_failures:
        raise Refused(f"{environment} offers tools of its own, so a version's descriptions are never sent there")
    return [tool | {"description": changed[tool["name"]]} if tool["name"] in changed else tool for tool in tools]


def _sampling(parent: Version, changes: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The parent's sampling with these changes; one that says what holds anyway is none. Raises Refused."""
    usual, found = DEFAULT_SAMPLING | parent.sampling, dict(parent.sampling)
    for name, value in changes.items():
        with at_field(f"{at}sampling.{name[:100]}"):
            checked = check_sampling({name: value})
        found |= checked if checked[name] != usual[name] else {}
    return found


def _changed_descriptions(parent: Version, version: Version) -> list[str]:
    """The descriptions of the version's tools that its parent's have not."""
    before = {tool["name"]: tool.get("description", "") for tool in parent.tools}
    described = [(tool["name"], tool.get("description", "")) for tool in version.tools]
    return [text for name, text in described if text != before.get(name)]


def _draft(
    trial: FixTrial, place: int, content: VersionContent, examples: list[str], wanted: TrialRequest, actor: Actor
) -> FixDraft:
    draft = wanted.drafts[place]
    with at_field(f"drafts.{place}"):
        version, _ = make_version(
            agent=wanted.parent.agent, actor=actor, content=content, parent=wanted.parent, note=f"Draft: {draft.name}"
        )
    changes = {
        "prompt": version.system_prompt != wanted.parent.system_prompt,
        "tool_change": version.tools != wanted.parent.tools,
        "sampling": version.sampling != wanted.parent.sampling,
    }
    return FixDraft(
        trial=trial,
        place=place,
        name=draft.name.strip(),
        changes=[name for name, is_so in changes.items() if is_so],
        examples=examples,
        version=version,
        evaluation=_eval_of(version, wanted, actor, f"draft {place}"),
    )


def _eval_of(version: Version, wanted: TrialRequest, actor: Actor, part: str) -> EvalRun:
    """An eval of the version on the train tasks. Raises Refused."""
    key = _key(wanted.key, part)
    return equal_or_new(key, version, wanted.task_set, Split.TRAIN, wanted.settings, actor)


def _key(key: uuid.UUID, part: str) -> uuid.UUID:
    return uuid.uuid5(key, part)
