"""A teacher on a server teaches what the same teacher teaches in the trainer, or says why it cannot."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.trainers.attempts.served_policy import BASE, ServedPolicy, served
from tests.workers.trainers.attempts.test_remote_policy import LORA, at, of
from tests.workers.trainers.attempts.test_step_attempts import EPISODES, played
from tests.workers.trainers.cast import NAMES, Directory, Make, Start, owned
from workers.trainers.objectives.served_teacher import ServedTeacher
from workers.trainers.run import checkpoints
from workers.trainers.run.run_failures import TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(scope="session")
def adapters(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two of which each makes a teacher of the policy: it says other things then."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    paths = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(trained), config)
        for name, weight in model.named_parameters():
            weight.data *= 0.3 if "lora_B" in name else 1.0
        paths.append(tmp_path_factory.mktemp("teacher"))
        model.save_pretrained(str(paths[-1]))
    return paths


@pytest.fixture
def adapter(adapters: list[Path]) -> Path:
    return adapters[0]


def directory(make: Make, trained: Path, adapter: Path | None, is_served: bool = True, **fields: Any) -> Directory:
    run = make("distillation", on=trained, teacher=trained, held_out=False, tuning=LORA, **fields)
    if adapter is not None:
        run.spec["teacher"]["adapter"] = {"path": str(adapter), "digest": checkpoints.directory_digest(adapter)}
    if is_served:
        run.spec["settings"]["teacher_from"] = "vllm"
        run.spec["teacher"]["served_base"] = BASE
    run.save()
    return run


def test_it_teaches_what_the_same_teacher_teaches_in_the_trainer(
    make: Make, start: Start, trained: Path, adapter: Path
) -> None:
    fields: dict[str, Any] = {"environment": EPISODES, "train": [played(name) for name in NAMES[:4]], "steps": 1}
    here = directory(make, trained, adapter, is_served=False, name="here", **fields)
    assert start(here).wait() == 0, here.errors()
    there = directory(make, trained, adapter, name="there", **fields)
    with served(trained) as server:
        assert start(there, hook=at, given=server.url).wait() == 0, there.errors()
    assert not server.adapters, "it is taken from the server at the end"
    assert all(body["prompt_logprobs"] == 0 for body in server.asked), "nothing is sampled there"
    own, told = here.metrics()[1], there.metrics()[1]
    assert (own["teacher_kl"] > 0.1, own["grad_norm"] > 0.01) == (True, True)
    for name in ("teacher_kl", "loss", "grad_norm"):
        assert told[name] == pytest.approx(own[name], abs=1e-5)


def impatient(url: str) -> None:
    """A hook: the operator's server is there, and is not waited for."""
    from workers.trainers.attempts import remote_policy

    at(url)
    remote_policy.PATIENCE_S = 0.0


def away(server: ServedPolicy, other: Path) -> None:
    threading.Thread(target=server.close).start()  # which waits for who asks now


def another(server: ServedPolicy, other: Path) -> None:
    server.adapters, server._in_model = dict.fromkeys(server.adapters, other), ""


@pytest.mark.parametrize(
    ("befalls", "said"),
    [
        (away, "cannot be used: "),
        (another, "is not who it was: under teacher-"),
    ],
)
def test_a_server_that_dies_or_answers_as_somebody_else_costs_the_steps_since_the_last_checkpoint(
    make: Make, start: Start, trained: Path, adapters: list[Path],
    befalls: Callable[[ServedPolicy, Path], None], said: str,
) -> None:  # fmt: skip
    run = directory(make, trained, adapters[0], checkpoint_every=1)
    with served(trained) as server:
        real, of_a_step = server.answer, run.spec["settings"]["batch_size"]

        def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            if path == "completions" and len(server.asked) == of_a_step:
                befalls(server, adapters[1])
            return real(path, body)

        server.answer = answer  # type: ignore[method-assign]
        assert start(run, hook=impatient, given=server.url).wait() == 1
    assert run.result["kind"] == "sampler"
    assert f"at {server.url}/v1 {said}" in run.result["message"]
    assert "resume" in run.result["message"]
    assert sorted(run.metrics()) == [1], "nothing is learnt from what it says then"
    with served(trained) as server:
        assert start(run, hook=at, given=server.url).wait() == 0, run.errors()
    assert run.events("training_start")[-1]["resumed_from"] == 1
    assert sorted(run.metrics()) == [1, 2, 3]
    assert [name[-3:] for name in server.loaded] == ["-a2"]


def test_a_server_with_too_little_room_is_told_of_before_anything_is_played(
    make: Make, start: Start, trained: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = directory(make, trained, adapter)
    with served(trained) as server:
        server.room = 25
        assert start(run, hook=at, given=server.url).wait() == 1
        assert (run.result["kind"], server.asked, run.metrics()) == ("sampler", [], {})
        assert f"the teacher at {server.url}/v1 reads at most 24 tokens, and attempts at " in run.result["message"]
        assert "start the server with --max-model-len " in run.result["message"]
        assert not server.adapters
    with served(trained) as server:
        teacher = teacher_of(run, monkeypatch, server)
    teacher.check_room({"short": 3, "just": 511 - 24})
    with pytest.raises(TrainingError, match=r"at long may have 512, of which its prompt has 488: .*-len 513 or more"):
        teacher.check_room({"just": 511 - 24, "long": 512 - 24})


def teacher_of(run: Directory, monkeypatch: pytest.MonkeyPatch, server: ServedPolicy) -> ServedTeacher:
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", server.url)
    return ServedTeacher(of(owned(run)))


@pytest.fixture
def server(trained: Path) -> Iterator[ServedPolicy]:
    with served(trained) as found:
        yield found


BATCH = {
    "prompt_ids": torch.tensor([[0, 7, 8], [5, 6, 7]]),
    "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
    "completion_ids": torch.tensor([[9, 10], [11, 0]]),
    "completion_mask": torch.tensor([[1, 1], [1, 0]]),
}


def test_padding_is_not_asked_about_and_a_server_that_forgot_is_told_again(
    make: Make, trained: Path, adapter: Path, server: ServedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = directory(make, trained, adapter)
    teacher = teacher_of(run, monkeypatch, server)
    first = teacher.log_probs(BATCH)
    assert sorted(body["prompt"] for body in server.asked) == [[5, 6, 7, 11], [7, 8, 9, 10]]
    assert (first[0] < 0).all()
    assert first[1, 1] == 0
    server.adapters, server.loaded = {}, []
    assert torch.equal(teacher.log_probs(BATCH), first)
    assert server.loaded == [teacher.name]
    (run.path / "events.jsonl").write_text('{"event": "training_start"}\n')
    again = teacher_of(run, monkeypatch, server)
    assert list(server.adapters) == [again.name], "what a start that was killed has left is taken from it"
    again.close()
    assert not server.adapters


def test_a_step_whose_answers_are_all_masked_leaves_the_proof_to_the_next(
    make: Make, trained: Path, adapter: Path, server: ServedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = teacher_of(directory(make, trained, adapter), monkeypatch, server)
    masked = {**BATCH, "completion_mask": torch.zeros(2, 2, dtype=torch.long)}
    assert not teacher.log_probs(masked).any()
    first = teacher.log_probs(BATCH)
    server.asked.clear()
    assert torch.equal(teacher.log_probs(BATCH), first)
    assert len(server.asked) == 3, "the two, and the longer one again"


def test_who_cannot_teach_is_said_before_anything_is_played(
    make: Make, trained: Path, adapter: Path, server: ServedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workers.trainers.weights import trained_policy

    monkeypatch.setattr(trained_policy, "_other_tokens", lambda *_: "its token 5 is 'a', and the policy's is 'b'")
    run = directory(make, trained, adapter)
    with pytest.raises(TrainingError, match=r"teacher.base: its token 5 is .* both must have one tokenizer"):
        teacher_of(run, monkeypatch, server)
    monkeypatch.undo()
    with pytest.raises(TrainingError, match=r"teacher.adapter: None: a server is asked for an adapter"):
        owned(directory(make, trained, None, name="bare"))
    other = directory(make, trained, adapter, name="other")
    other.spec["teacher"]["served_base"] = "base-other"
    other.save()
    with pytest.raises(TrainingError, match=f"serves {BASE}, and this run learns from base-other: start it with"):
        teacher_of(other, monkeypatch, server)
    monkeypatch.delenv("FLYWHEEL_VLLM_URL")
    with pytest.raises(TrainingError, match="set FLYWHEEL_VLLM_URL and resume"):
        ServedTeacher(of(owned(run)))
