"""Every kind of job that has pages: how far it is, stop and go on, who may, what is written down of it."""

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.agents.models import HubVersion
from flywheel.edge.jobs import Job, State
from flywheel.environments.models import Generation, Proving
from flywheel.evals.models import EvalRun, Rescore
from flywheel.failures.models import Clustering
from flywheel.training.models import DatasetBuild, TokenPreview
from flywheel.trajectories.models import Import
from flywheel.trajectories.operations import bulk_actions
from tests.conftest import Build, Cast
from tests.edge.test_jobs import training_run

pytestmark = pytest.mark.django_db


class Kind(NamedTuple):
    live: str
    cancel: str
    resume: str
    """Empty where it cannot be resumed."""
    entries: tuple[str, str]
    """In the audit log, of a cancel and of a resume."""
    subject: str
    refusals: tuple[str, str] = ("Not stopped", "Not resumed")


KINDS = {
    "import": Kind(
        "trajectories:import_live",
        "trajectories:cancel_import",
        "trajectories:resume_import",
        ("trajectories.cancel_import", "trajectories.resume_import"),
        "file runs.jsonl",
    ),
    "bulk": Kind(
        "trajectories:bulk_live",
        "trajectories:cancel_bulk",
        "trajectories:resume_bulk",
        ("trajectories.cancel_bulk", "trajectories.resume_bulk"),
        "bulk action {pk}",
    ),
    "clustering": Kind(
        "failures:clustering_live",
        "failures:cancel_clustering",
        "failures:resume_clustering",
        ("failures.cancel_clustering", "failures.resume_clustering"),
        "clustering {pk}",
    ),
    "generation": Kind(
        "environments:generation_live",
        "environments:cancel_generation",
        "environments:resume_generation",
        ("environments.stop_generation", "environments.resume_generation"),
        "generation {pk}",
    ),
    "hub version": Kind(
        "agents:hub_version_live",
        "agents:cancel_hub_version",
        "agents:resume_hub_version",
        ("agents.cancel_hub_version", "agents.resume_hub_version"),
        "fetch {pk}",
    ),
    "proving": Kind(
        "environments:proving_live",
        "environments:stop_proving",
        "",
        ("environments.stop_proving", ""),
        "proving {pk}",
    ),
    "eval": Kind("evals:live", "evals:cancel", "evals:resume", ("evals.cancel", "evals.resume"), "eval {pk}"),
    "rescore": Kind(
        "evals:rescore_live",
        "evals:cancel_rescore",
        "evals:resume_rescore",
        ("evals.cancel_rescore", "evals.resume_rescore"),
        "rescore {pk}",
    ),
    "build": Kind(
        "training:build_live",
        "training:cancel_build",
        "training:resume_build",
        ("training.cancel_build", "training.resume_build"),
        "build {pk}",
    ),
    "preview": Kind(
        "training:preview_live",
        "training:cancel_preview",
        "training:resume_preview",
        ("training.cancel_preview", "training.resume_preview"),
        "preview {pk}",
    ),
    "training": Kind(
        "training:live",
        "training:cancel",
        "training:resume",
        ("training.cancel", "training.resume"),
        "r-{pk}",
        ("Nothing was cancelled", "Nothing was resumed"),
    ),
}


def job_of(name: str, build: Build, cast: Cast) -> Job:
    about: dict[str, Any] = {"project": cast.project, "created_by": cast.builder}
    if name == "training":
        return training_run(build)
    if name == "import":
        return Import.objects.create(**about, name="runs.jsonl", upload="0" * 32)
    if name == "build":
        return DatasetBuild.objects.create(**about, name="good", origin="trajectories")
    if name == "preview":
        training = training_run(build)
        about |= {name: getattr(training, name) for name in ("base", "dataset", "task_set", "algorithm", "settings")}
        return TokenPreview.objects.create(**about)
    if name == "hub version":
        return HubVersion.objects.create(**about, agent=build.agent(), name="own/tiny", content={})
    if name == "bulk":
        options = {"tags": ["a"]}
        return bulk_actions.submit(
            project=cast.project, actor=Actor(cast.admin), action="tag", options=options, key=uuid.uuid4()
        )
    if name == "clustering":
        return Clustering.objects.create(**about, up_to=0)
    if name == "generation":
        return Generation.objects.create(**about, environment=build.environment(), count=1, seed=1)
    if name == "proving":
        return Proving.objects.create(**about, environment=build.environment())
    task_set = build.task_set(train=1, held_out=1)
    run = EvalRun.objects.create(**about, version=build.version(), task_set=task_set, verifier_digest="0" * 64, total=4)
    if name == "eval":
        return run
    version = task_set.environment_version
    return Rescore.objects.create(**about, run=run, environment_version=version, verifier_digest="0" * 64)


@pytest.fixture
def everyone(cast: Cast, sign_in: Callable[[User], Client]) -> Client:
    """Somebody with every role."""
    return sign_in(cast.admin)


@pytest.mark.parametrize("name", KINDS)
def test_it_is_watched_stopped_and_resumed(name: str, build: Build, cast: Cast, everyone: Client) -> None:
    kind, job = KINDS[name], job_of(name, build, cast)
    live, cancel = (reverse(url, args=[cast.project.slug, job.pk]) for url in (kind.live, kind.cancel))
    assert everyone.get(live).status_code == 200
    assert everyone.get(cancel).status_code == 405
    assert everyone.post(cancel).status_code == 302
    job.refresh_from_db()
    assert (job.state, everyone.get(live).status_code) == (State.CANCELLED, 286)
    again = everyone.post(cancel)
    assert told(again) == f"{kind.refusals[0]}: the job is over already."
    wanted = [kind.entries[0]]
    if kind.resume:
        resume = reverse(kind.resume, args=[cast.project.slug, job.pk])
        assert everyone.post(resume).url == again.url  # type: ignore[attr-defined]
        job.refresh_from_db()
        assert job.state == State.QUEUED
        assert told(everyone.post(resume)) == f"{kind.refusals[1]}: only a failed or cancelled job can be resumed."
        wanted.append(kind.entries[1])
    entries = AuditEntry.objects.filter(action__in=kind.entries).order_by("pk")
    assert [entry.action for entry in entries] == wanted
    assert {entry.subject for entry in entries} == {kind.subject.format(pk=job.pk)}
    assert [(entry.data, entry.actor) for entry in entries] == [({}, cast.admin)] * len(wanted)


def told(answer: Any) -> str:
    """The newest message that waits for its reader."""
    return str(list(get_messages(answer.wsgi_request))[-1])
