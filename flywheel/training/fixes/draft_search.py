"""Searching for a better prompt with a model's help: what is asked for, what came of it, and how its best goes on.

    plan = plan_of(wanted)                          what it would attempt, and about what that costs
    search, is_new = submit(wanted, actor)          frozen and queued; a worker plays it (`workers.jobs.training`)
    results_of(search)                              every proposal with its mean
    trial = try_proposals(search, places, actor)    they become drafts of a trial, as if somebody had written them

The search attempts train tasks alone, those of them that share nothing with what is measured. Each proposal has one
attempt per task, and the best of many is picked: what it gains is shown by the trial, and decided on held-out tasks.
"""

import random
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import transaction
from django.db.models import Avg, Count, QuerySet, Sum

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.agents.version_content import OPENAI, check_endpoint
from flywheel.core import verifiers
from flywheel.edge.refusals import Refused, Stale
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import Result
from flywheel.evals.runs.submission import MAX_SAMPLES, MAX_SEED, RunSettings, sampling_of
from flywheel.failures.buckets import bucket_definitions
from flywheel.training.datasets.dataset_builder import train_tasks
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.fixes.example_choice import added_text, refuse_measured
from flywheel.training.fixes.trial_lifecycle import LONGEST_PROMPT, MOST_DRAFTS, DraftContent, TrialRequest, start
from flywheel.training.models import FixTrial, PromptProposal, PromptSearch, ProposalState

FIRST = 3
"""Tasks that a new proposal is tried on first, beside the one that it was made from."""
MOST_PROPOSALS = 100
MOST_TASKS = 200
MOST_ATTEMPTS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRequest:
    key: uuid.UUID
    bucket: str
    parent: Version
    task_set: TaskSet
    endpoint: Mapping[str, Any]
    """`base_url`, `model` and, where it needs one, `api_key_env` of the model that proposes."""
    proposals: int = 10
    """At most."""
    tasks: int = 30
    """Train tasks that are attempted, at most."""
    attempts: int | None = None
    """At most, with the trial afterwards; None for as many as the proposals may need."""
    samples: int = 4
    """Attempts per task in the trial afterwards."""
    seed: int = 1


def submit(wanted: SearchRequest, actor: Actor) -> tuple[PromptSearch, bool]:
    """Freeze and queue a search. Returns it, and whether it is new. Raises Refused."""
    project = wanted.task_set.project
    if existing := PromptSearch.objects.filter(project=project, idempotency_key=wanted.key).first():
        return existing, False  # whatever could be searched with now
    plan = plan_of(wanted)
    endpoint = check_endpoint({"kind": OPENAI, **wanted.endpoint}, project.pk)
    with transaction.atomic():
        search, is_new = PromptSearch.submit(
            key=wanted.key,
            actor=actor,
            entry="training.search_prompts",
            about={
                "bucket": wanted.bucket,
                "parent": str(wanted.parent),
                "task_set": str(wanted.task_set),
                "model": endpoint["model"],
            },
            project=project,
            bucket=wanted.bucket,
            parent=wanted.parent,
            task_set=wanted.task_set,
            tasks=[task.pk for task in plan.tasks],
            endpoint=endpoint,
            seed=wanted.seed,
            sampling=sampling_of(wanted.parent),
            verifier_digest=verifiers.digest(wanted.task_set.environment_version.verifier),
            most_attempts=plan.most,
            most_proposals=wanted.proposals,
            samples=wanted.samples,
            total=wanted.proposals,
        )
        if is_new:
            PromptProposal.objects.create(search=search, place=0, text=wanted.parent.system_prompt)
    return search, is_new


@dataclass(frozen=True, slots=True)
class SearchPlan:
    tasks: list[Task]
    """That are attempted."""
    trial: int
    """Attempts of a trial of one proposal, with those of the version that it is compared with; they are kept back."""
    most: int
    """Attempts, with those of the trial."""
    usd: float | None
    """What so many cost, at what an attempt of the version has cost on average; None where nobody knows."""


def plan_of(wanted: SearchRequest) -> SearchPlan:
    """Work out what a search would attempt. The server of the model that proposes is not looked at. Raises Refused."""
    _check(wanted)
    tasks = choose_tasks(wanted)
    trial, cost = _trial(wanted, 1), known_cost(wanted.parent)
    most = len(tasks) * (1 + wanted.proposals) + trial if wanted.attempts is None else wanted.attempts
    needed = len(tasks) + min(FIRST, len(tasks)) + trial
    if not needed <= most <= MOST_ATTEMPTS:
        raise Refused(
            f"{most} is not between {needed} and {MOST_ATTEMPTS}: the version as it is takes {len(tasks)}, a first "
            f"proposal {FIRST}, and trying one of them on all training tasks {trial}",
            field="attempts",
        )
    return SearchPlan(tasks, trial, most, None if cost is None else cost * most)


def _check(wanted: SearchRequest) -> None:
    """Raise Refused, naming the field."""
    if wanted.bucket not in bucket_definitions.every(wanted.task_set.project):
        raise Refused(f"there is no category {wanted.bucket[:100]!r}", field="bucket")
    if wanted.parent.agent.project_id != wanted.task_set.project_id:
        raise Refused(f"{wanted.parent} belongs to another project than {wanted.task_set}", field="version")
    if wanted.parent.is_program:
        problem = "is a program, which plays whole attempts in evals alone; write drafts of its prompt by hand"
        raise Refused(f"{wanted.parent} {problem}", field="version")
    limits = {
        "proposals": (wanted.proposals, 1, MOST_PROPOSALS),
        "tasks": (wanted.tasks, 1, MOST_TASKS),
        "samples": (wanted.samples, 1, MAX_SAMPLES),
        "seed": (wanted.seed, 0, MAX_SEED),
    }
    for name, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise Refused(f"{value} is not between {least} and {most}", field=name)


def choose_tasks(wanted: SearchRequest) -> list[Task]:
    """Return the train tasks that the search may see: those of the bucket first, by the seed, and none that shares its
    source or its request with what is measured. Raises Refused."""
    kind, measured = wanted.task_set.environment_version.environment.kind, Measured(wanted.task_set.project)
    tasks = [task for task in train_tasks(wanted.task_set) if not measured.has(task, kind)]
    if not tasks:
        problem = "has no training task that shares nothing with held-out or sealed ones"
        raise Refused(f"{wanted.task_set} {problem}", field="task_set")
    random.Random(wanted.seed).shuffle(tasks)
    tasks.sort(key=lambda task: task.bucket != wanted.bucket)
    return tasks[: wanted.tasks]


def _trial(search: "SearchRequest | PromptSearch", drafts: int) -> int:
    """Count the attempts of a trial of so many drafts, with those of the version that they are compared with."""
    return (1 + drafts) * search.task_set.members.filter(split=Split.TRAIN).count() * search.samples


def known_cost(parent: Version) -> float | None:
    """Average dollars of an attempt in the version's evals; None where nobody knows."""
    rows = Result.objects.filter(run__version=parent, cost_usd__isnull=False)
    found: float | None = rows.aggregate(usd=Avg("cost_usd"))["usd"]
    return found


def to_play(search: PromptSearch) -> int:
    """Return how many attempts the search itself may make: the trial of one proposal is kept back."""
    return search.most_attempts - _trial(search, 1)


def problem_of(search: PromptSearch, text: str, others: Iterable[PromptProposal], measured: Measured) -> str:
    """Say why a proposed text is not played; empty where it is."""
    if not text.strip():
        return "it is empty"
    if len(text) > LONGEST_PROMPT:
        return f"it has {len(text)} characters, {LONGEST_PROMPT} at most"
    if same := next((each for each in others if each.text == text), None):
        return f"it is the same as {same}" if same.place else f"it is the prompt of {search.parent}"
    try:
        refuse_measured([added_text(search.parent.system_prompt, text)], measured, field="")
    except Refused as error:
        return f"it {error.problem}"
    return ""


@dataclass(frozen=True, slots=True)
class ProposalResult:
    """A proposal, and what its attempts come to."""

    proposal: PromptProposal
    attempts: int
    n: int
    """Attempts with a score."""
    mean: float | None
    """Average over those; None where there is none."""
    priced: int
    """Attempts that say what they cost."""
    usd: float
    """Dollars of those."""

    @property
    def unscored(self) -> int:
        return self.attempts - self.n


@dataclass(frozen=True)
class SearchResults:
    search: PromptSearch
    proposals: list[ProposalResult]
    """The version's own prompt first."""

    @property
    def attempts(self) -> int:
        return sum(each.attempts for each in self.proposals)

    @cached_property
    def best(self) -> ProposalResult | None:
        """The proposal with the highest mean on all tasks, the first of several; None where none is above the version's
        own prompt."""
        own, *others = self.proposals
        played = [each for each in others if each.proposal.state == ProposalState.KEPT and each.mean is not None]
        best = max(played, key=lambda each: each.mean or 0.0, default=None)
        return best if best and own.mean is not None and (best.mean or 0.0) > own.mean else None

    @property
    def usd(self) -> float | None:
        """Dollars of all attempts and answers; None where one of them does not say."""
        asked = [each.proposal.cost_usd for each in self.proposals if each.proposal.place]
        known = [cost for cost in asked if cost is not None]
        is_known = len(known) == len(asked) and all(each.priced == each.attempts for each in self.proposals)
        return sum(known) + sum(each.usd for each in self.proposals) if self.attempts and is_known else None

    @property
    def most_drafts(self) -> int:
        """Count the proposals that what is left of the attempts is enough to try."""
        fits = (self.search.most_attempts - self.attempts) // _trial(self.search, 0) - 1
        return max(0, min(MOST_DRAFTS, fits))


def searches() -> QuerySet[PromptSearch]:
    """With what is shown of them."""
    return PromptSearch.objects.select_related(
        "project", "parent__agent", "task_set__environment_version__environment", "trial", "created_by"
    )


def results_of(search: PromptSearch) -> SearchResults:
    """Read every proposal with what its attempts come to."""
    rows = search.proposals.select_related("parent").annotate(
        made=Count("attempts"),
        scored=Count("attempts__score"),
        mean=Avg("attempts__score"),
        priced=Count("attempts__cost_usd"),
        usd=Sum("attempts__cost_usd"),
    )
    return SearchResults(
        search,
        [
            ProposalResult(row, row.made, row.scored, row.mean, row.priced, row.usd or 0.0)
            for row in rows.order_by("place")
        ],
    )


def try_proposals(search: PromptSearch, places: Collection[int], actor: Actor) -> FixTrial:
    """Have these proposals tried on all training tasks, as the drafts of a trial. Asked again, the same trial.

    Raises Refused for proposals that are none, or too many for what is left of the attempts; Stale before the end.
    """
    with transaction.atomic():
        search = PromptSearch.objects.select_for_update(of=["self"]).select_related("trial").get(pk=search.pk)
        if search.trial is not None:
            return search.trial
        if not search.is_finished:
            raise Stale(f"{search} is not over")
        found = results_of(search)
        usable = {
            each.proposal.place: each.proposal
            for each in found.proposals
            if each.proposal.place and each.proposal.state != ProposalState.REFUSED
        }
        if unknown := sorted(set(places) - set(usable)):
            raise Refused(f"{unknown[0]} is no proposal of {search} that can be tried", field="proposals")
        if not 1 <= len(set(places)) <= found.most_drafts:
            limit = f"{search.most_attempts} attempts, {found.attempts} of them made"
            raise Refused(
                f"{len(set(places))} proposals; from 1 to {found.most_drafts} fit into the budget of {limit}",
                field="proposals",
            )
        drafts = [
            DraftContent(name=f"Proposal {place}", system_prompt=usable[place].text) for place in sorted(set(places))
        ]
        wanted = TrialRequest(
            key=uuid.uuid5(search.idempotency_key, "trial"),
            bucket=search.bucket,
            parent=search.parent,
            task_set=search.task_set,
            drafts=drafts,
            settings=RunSettings(samples=search.samples, seed=search.seed),
        )
        search.trial, _ = start(wanted, actor)
        search.save(update_fields=["trial"])
    return search.trial
