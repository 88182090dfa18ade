"""Merged weights as workers make them, with the policy that ships: the download answers as base and adapter do."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.agents import artifacts
from flywheel.agents.models import MergedWeights, Version
from flywheel.agents.weights import merged_weights
from flywheel.edge.jobs import State
from tests.conftest import Build, Cast
from workers.jobs.weights import adapter_merges

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]


@pytest.fixture
def tuned(tmp_path: Path) -> Any:
    """The policy that ships with an adapter beside it, drawn by chance; it lies in `adapter`."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(settings.REFERENCE_POLICY, dtype=torch.float32)
    about = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    found = get_peft_model(model, about).eval()
    found.save_pretrained(str(tmp_path / "adapter"))
    return found


def merged(version: Version, cast: Cast, dtype: str) -> MergedWeights:
    job, _ = merged_weights.merge(version, Actor(cast.builder), dtype)
    lease = MergedWeights.claim(job.pk)
    assert lease is not None
    with lease:
        adapter_merges.merge(lease)
    job.refresh_from_db()
    return job


def test_what_is_downloaded_answers_as_base_and_adapter_do(
    build: Build, cast: Cast, client: Client, key: Callable[..., dict[str, str]], tuned: Any, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    version = build.version(
        weights=artifacts.store(Path(settings.REFERENCE_POLICY), "model"),
        adapter=artifacts.store(tmp_path / "adapter", "adapter"),
    )
    job = merged(version, cast, "float32")
    assert (job.state, job.error, job.lost) == (State.SUCCEEDED, "", 0.0)
    assert not list(Path(settings.RUNS_DIR).glob("merge-*"))
    place = f"/api/v1/agents/{version.agent.name}/versions/{version.number}/downloads/merged-float32.tar"
    answer: Any = client.get(place, headers=key("read"))
    with tarfile.open(fileobj=io.BytesIO(b"".join(answer))) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "unpacked" / "model")
    assert whole.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "unpacked" / "model")
    tokens = tokenizer("Meet Bako on friday", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        apart = (whole(input_ids=tokens).logits - tuned(input_ids=tokens).logits).abs().max()
    assert apart < 1e-4  # merged once and added each time round apart, by a few digits of float32
    with torch.inference_mode(), tuned.disable_adapter():
        bare = tuned(input_ids=tokens).logits
    assert (whole(input_ids=tokens).logits - bare).abs().max() > 0.1
