"""Attempts sampled on a server: what is sampled is proved to be what is trained, and what is not is not learnt from."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.workers.trainers.attempts.served_policy import BASE, ServedPolicy, served
from tests.workers.trainers.attempts.test_step_attempts import EPISODES, played
from tests.workers.trainers.cast import NAMES, Directory, Make, Start, owned
from workers.engines.openai_engine import Failed
from workers.trainers.attempts import remote_policy
from workers.trainers.attempts.remote_policy import EXACT_NATS, RemotePolicy, Waiting
from workers.trainers.run import checkpoints
from workers.trainers.run.run_failures import TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")

LORA = {"mode": "lora", "rank": 4, "alpha": 8}


def at(url: str) -> None:
    """A hook: the operator's server is there."""
    os.environ["FLYWHEEL_VLLM_URL"] = url


def directory(make: Make, algorithm: str = "grpo", **fields: Any) -> Directory:
    settings = {"rollouts": "vllm", "learning_rate": 1e-2, **fields.pop("settings", {})}
    whole: dict[str, Any] = {"tuning": LORA, "served_base": BASE, "held_out": False, "steps": 3, **fields}
    return make(algorithm, settings=settings, **whole)


def proofs(run: Directory) -> list[dict[str, Any]]:
    return run.events("proof")


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_whole_episodes_are_sampled_there_and_every_token_has_the_trainers_probability(
    algorithm: str, make: Make, start: Start, trained: Path
) -> None:
    run = directory(
        make, algorithm, on=trained, environment=EPISODES, train=[played(name) for name in NAMES[:4]],
        settings={"temperature": 0.7},
    )  # fmt: skip
    with served(trained) as server:
        assert start(run, hook=at, given=server.url).wait() == 0, run.errors()
    assert [row["name"].split("-", 2)[2] for row in proofs(run)] == ["a1-s0", "a1-s1", "a1-s2"]
    assert server.loaded == [row["name"] for row in proofs(run)]
    assert not server.adapters, "each is unloaded after the next, and the last at the end"
    assert all(row["mean"] < 1e-5 and row["limit"] == EXACT_NATS for row in proofs(run))
    assert proofs(run)[0]["moved"] is None
    assert all(row["moved"] > EXACT_NATS for row in proofs(run)[1:]), "an update that is lost would be seen"
    for metrics in run.metrics().values():
        assert metrics["turns_mean"] > 1
        assert metrics["sampler_mismatch_max"] < 1e-4, "in what tools said, too, nothing is out of place"
        assert metrics["sync_proof"] < 1e-5
    assert not (run.path / "work").exists()


def test_a_lost_update_fails_the_run_with_its_numbers_and_it_resumes_from_its_checkpoint(
    make: Make, start: Start, trained: Path
) -> None:
    run = directory(make, on=trained, checkpoint_every=1)
    with served(trained) as server:
        server.is_stale = True
        assert start(run, hook=at, given=server.url).wait() == 1
        assert run.result["kind"] == "sampler"
        found = proofs(run)[-1]
        assert (found["step"], found["mean"] > EXACT_NATS) == (1, True)
        assert f"off by {found['mean']:.3g} nats in the mean" in run.result["message"]
        assert {body["model"] for body in server.asked[remote_policy.PROBES :]} == set(server.loaded)
        assert len([body for body in server.asked if body["model"] == found["name"]]) == remote_policy.PROBES, (
            "nothing is sampled after a proof that failed"
        )
        assert not server.adapters
        assert not (run.path / "sampled").exists(), "nothing of it is learnt from after the resume"
        server.is_stale = False
        assert start(run, hook=at, given=server.url).wait() == 0, run.errors()
    assert sorted(run.metrics()) == [1, 2, 3]
    assert run.events("training_start")[-1]["resumed_from"] == 1
    assert proofs(run)[-1]["name"].endswith("-a2-s2")


def test_who_cannot_be_asked_is_said_before_anything_is_sampled(
    make: Make, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = owned(directory(make, name="one"))
    (run.path / "events.jsonl").touch()
    monkeypatch.delenv("FLYWHEEL_VLLM_URL", raising=False)
    with pytest.raises(TrainingError, match="set FLYWHEEL_VLLM_URL and resume"):
        RemotePolicy(run, [1], [[2]])
    with served(base) as server:
        monkeypatch.setenv("FLYWHEEL_VLLM_URL", server.url)
        other = owned(directory(make, name="two", served_base="base-other"))
        with pytest.raises(TrainingError, match=f"serves {BASE}, and this run trains base-other"):
            RemotePolicy(of(other), [1], [[2]])
    told: list[str] = []
    run.warn = told.append
    with pytest.raises(TrainingError, match=r"cannot be used: no connection: .* then resume"):
        RemotePolicy(run, [1], [[2]])
    assert len(told) == 1


def test_of_several_servers_the_one_with_the_base_samples(
    make: Make, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = of(owned(directory(make)))
    with served(base) as server:
        port = int(server.url.rpartition(":")[2])
        monkeypatch.setenv("FLYWHEEL_SERVE", "vllm")
        monkeypatch.setenv("FLYWHEEL_SERVE_GPUS", "0,1")
        monkeypatch.setenv("FLYWHEEL_VLLM_URL", f"http://127.0.0.1:{port - 1}")
        assert RemotePolicy(run, [1], [[2]]).server.base_url == f"{server.url}/v1"
        monkeypatch.setattr(remote_policy, "PATIENCE_S", 0)
        assert remote_policy.server_of(run, "base-other").base_url == f"http://127.0.0.1:{port - 1}/v1"


def of(run: Any) -> Any:
    (run.path / "events.jsonl").touch()
    return run


def test_what_an_earlier_start_left_on_the_server_is_taken_from_it(
    make: Make, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = of(owned(directory(make)))
    with served(base) as server:
        left = f"rollouts-{run.spec.digest[:8]}-a1-s4"
        server.adapters = dict.fromkeys((left, "mail-agent-v3-9f8e7d6c", "rollouts-another0-a1-s4"), base)
        monkeypatch.setenv("FLYWHEEL_VLLM_URL", server.url)
        RemotePolicy(run, [1], [[2]])
    assert set(server.adapters) == {"mail-agent-v3-9f8e7d6c", "rollouts-another0-a1-s4"}


def test_a_step_whose_tokens_are_off_fails_though_the_probes_were_right(
    make: Make, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a server mixes rows up only in a full batch."""
    policy = met(make, base, monkeypatch)
    policy.limit = EXACT_NATS
    name = "sampling/sampling_logp_difference"
    state = SimpleNamespace(global_step=7)
    policy.on_log(None, state, None, logs={f"{name}/mean": EXACT_NATS, f"{name}/max": 0.1})
    with pytest.raises(TrainingError, match=r"of step 7 .* off by 0.002 nats in the mean and 3 at worst"):
        policy.on_log(None, state, None, logs={f"{name}/mean": 2 * EXACT_NATS, f"{name}/max": 3.0})
    with pytest.raises(TrainingError):
        policy.on_log(None, state, None, logs={f"{name}/mean": float("nan"), f"{name}/max": 3.0})


def test_an_adapter_that_is_another_when_it_is_read_back_is_not_loaded(
    make: Make, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    policy = met(make, base, monkeypatch)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    policy.trainer = SimpleNamespace(model=get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])))
    assert (policy._write("one") / remote_policy.WEIGHTS).is_file()

    def torn(aside: Path, target: Path) -> None:
        move(aside, target)
        tensors = load_file(target / remote_policy.WEIGHTS)
        save_file({name: tensor + 1 for name, tensor in tensors.items()}, target / remote_policy.WEIGHTS)

    move = checkpoints.move
    monkeypatch.setattr(checkpoints, "move", torn)
    with pytest.raises(TrainingError, match="is another when it is read back"):
        policy._write("two")


def test_waiting_for_the_server_is_told_once_a_spell(make: Make) -> None:
    told: list[str] = []
    waiting = Waiting(owned_with(told, make))
    for _ in range(3):
        waiting(Failed("the server answered 503"))
    assert told == ["waiting for the vLLM server, at most 300 s: the server answered 503"]


def owned_with(told: list[str], make: Make) -> Any:
    run = owned(directory(make))
    run.warn = told.append
    return run


def met(make: Make, base: Path, monkeypatch: pytest.MonkeyPatch) -> RemotePolicy:
    """A policy whose server has answered, and is gone."""
    server: ServedPolicy
    with served(base) as server:
        monkeypatch.setenv("FLYWHEEL_VLLM_URL", server.url)
        return RemotePolicy(of(owned(directory(make))), [1], [[2]])
