"""Previews of what would be learnt as workers make them, with the policy that ships."""

from pathlib import Path
from shutil import copytree

import pytest
from django.conf import settings

from flywheel.accounts.actors import Actor
from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.edge.jobs import State
from flywheel.training.datasets.dataset_builder import build as dataset
from flywheel.training.launch import preview_jobs
from flywheel.training.models import TokenPreview
from tests.conftest import Build, Cast
from workers.jobs.training import row_previews

pytestmark = pytest.mark.django_db(transaction=True)


def version(build: Build, weights: Path | None = None) -> Version:
    return build.version(weights=artifacts.store(weights or Path(settings.REFERENCE_POLICY), "model"))


def previewed(cast: Cast, base: Version, build: Build, kind: str) -> TokenPreview:
    rows = dataset(name="rows", kind=kind, task_set=build.task_set(), actor=Actor(cast.trainer), version=base)
    job, _ = preview_jobs.preview(base=base, dataset=rows, actor=Actor(cast.trainer))
    lease = TokenPreview.claim(job.pk)
    assert lease is not None
    with lease:
        row_previews.make_tokens(lease)
    job.refresh_from_db()
    return job


@pytest.mark.parametrize("kind", ["sft", "tasks"])
def test_a_worker_shows_rows_in_the_bases_own_tokens(kind: str, build: Build, cast: Cast) -> None:
    job = previewed(cast, version(build), build, kind)
    assert (job.state, job.error) == (State.SUCCEEDED, "")
    made = job.result
    assert made["rows"] == made["of"] == job.dataset.rows
    assert (made["learnt"] > 0) == (kind == "sft")
    states = [span["state"] for span in made["examples"][0]["sequences"][0]["spans"]]
    assert states == (["read", "learnt"] if kind == "sft" else ["read"])
    assert not list(Path(settings.RUNS_DIR).glob("preview-*"))


def test_a_base_that_cannot_be_trained_says_why(build: Build, cast: Cast, tmp_path: Path) -> None:
    copytree(settings.REFERENCE_POLICY, tmp_path / "silent")
    (tmp_path / "silent" / "chat_template.jinja").unlink()
    job = previewed(cast, version(build, tmp_path / "silent"), build, "sft")
    assert (job.state, job.error_kind) == (State.FAILED, "model")
    assert "its tokenizer has no chat template" in job.error
