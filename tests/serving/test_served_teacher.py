"""A teacher on a real vLLM server tells what the same teacher tells in the trainer, beside another adapter."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.evals.serving import loaded_adapters
from tests.serving.test_rollouts import NOISE
from tests.serving.test_vllm import engine, names, requests
from tests.workers.trainers.cast import Directory, owned
from workers.judging.hosted_teacher import HostedTeacher
from workers.reference.build import POLICY
from workers.trainers.objectives.served_teacher import ServedTeacher
from workers.trainers.run import checkpoints
from workers.trainers.weights import trained_policy

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning"),
]


def test_it_tells_each_tokens_log_probability_as_the_trainer_has_it(
    server: str, version: Callable[..., Version], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", server)
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(POLICY), config).save_pretrained(str(tmp_path / "adapter"))
    directory = Directory(
        tmp_path / "run", POLICY, "distillation", teacher=POLICY, held_out=False, settings={"teacher_from": "vllm"}
    )
    directory.spec["teacher"] |= {
        "adapter": {
            "path": str(tmp_path / "adapter"),
            "digest": checkpoints.directory_digest(tmp_path / "adapter"),
        },
        "served_base": loaded_adapters.base_name(artifacts.digest_of(POLICY)),
    }
    directory.save()
    run = owned(directory)
    (run.path / "events.jsonl").touch()
    model = trained_policy.teacher(run)
    ids = torch.randint(5, model.config.vocab_size, (16, 40))
    batch = {
        "prompt_ids": ids[:, :12], "prompt_mask": torch.ones_like(ids[:, :12]),
        "completion_ids": ids[:, 12:], "completion_mask": torch.ones_like(ids[:, 12:]),
    }  # fmt: skip
    other = loaded_adapters.load(version(1))
    asking = threading.Thread(target=lambda: engine(server, other).chat(requests(16)))
    asking.start()
    with closing(ServedTeacher(run)) as teacher:
        told, again, room = teacher.log_probs(batch), teacher.log_probs(batch), teacher.room
    asking.join()
    with torch.no_grad():
        chances = model(ids).logits.log_softmax(-1)[:, 11:-1]
        bare = AutoModelForCausalLM.from_pretrained(POLICY)(ids).logits.log_softmax(-1)[:, 11:-1]
    own = chances.gather(-1, ids[:, 12:, None])[..., 0]
    assert (told - own).abs().max() < NOISE
    assert (told - again).abs().max() < NOISE
    assert (own - bare.gather(-1, ids[:, 12:, None])[..., 0]).abs().mean() > 0.1, "the adapter says other things"
    assert room == 4095, "the server says what it takes"
    assert teacher.name not in names()


def test_its_base_behind_its_address_teaches_as_a_hosted_model(server: str) -> None:
    """What the trainer proves and learns of a hosted teacher: texts by its own tokenizer, and log-probabilities."""
    base = loaded_adapters.base_name(artifacts.digest_of(POLICY))
    hosted = HostedTeacher("digest", {"kind": "openai", "base_url": f"{server}/v1", "model": base})
    model = AutoModelForCausalLM.from_pretrained(POLICY)
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    tokens = list(range(0, model.config.vocab_size, 3))
    read = hosted.read(tokens)
    with torch.no_grad():
        chances = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    own = [float(chances[place, token]) for place, token in enumerate(tokens[1:])]
    assert read.logprobs == pytest.approx(own, abs=NOISE)
    written = [tokenizer.decode([token]) for token in tokens[1:]]
    assert [text for text, mine in zip(read.texts, written, strict=True) if "\ufffd" not in mine] == [
        mine for mine in written if "\ufffd" not in mine
    ]
    assert (read.tokens_in, read.tokens_out, hosted.room()) == (len(tokens), 1, 4095)
