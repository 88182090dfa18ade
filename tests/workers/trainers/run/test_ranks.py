"""Several processes share a run: they make of it what one makes, save it once, and stop and go on together."""

import os
import shutil
import socket
from typing import Any

import pytest
from safetensors.torch import load_file

from flywheel.core import recipes
from tests.workers.trainers.cast import NAMES, Directory, Make, Start, sft_row, slow, task
from workers.trainers.run import ranks

ROWS = {"batch_size": 8, "max_grad_norm": 0.5}
DEEPSPEED = pytest.mark.skipif(bool(recipes.lacking("deepspeed")), reason="deepspeed is not installed")
KINDS = pytest.mark.parametrize("sharding", ["none", "fsdp2"])


def shared(given: tuple[int, int, float]) -> None:
    """A hook: be one of two processes of a run, as `torchrun` says it to each."""
    number, port, seconds = given
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if seconds:
        slow(seconds)


def shared_by_deepspeed(given: tuple[int, int, float]) -> None:
    """A hook: as `shared`, on the CPUs on which we refuse it; accelerate takes each process for the only one there."""
    from accelerate import PartialState

    from workers.trainers.weights import sharded_weights

    def begin(config: Any) -> None:
        state = PartialState()
        state.backend, state.num_processes = "gloo", 2
        state.process_index = state.local_process_index = given[0]

    shared(given)
    os.environ["DS_ACCELERATOR"] = "cpu"
    fields = {**sharded_weights.FIELDS["deepspeed"], "use_cpu": False}
    sharded_weights.fields, sharded_weights.begin = lambda settings: fields, begin  # noqa: ARG005 - as it is named


def fails_in_the_second(given: tuple[int, int, float]) -> None:
    """A hook: as `shared`, and the second process fails at its first step."""
    from workers.trainers import training_loop
    from workers.trainers.run.run_failures import TrainingError

    def fail(*_: Any, **__: Any) -> None:
        raise TrainingError("verifier", "it is away")

    shared(given)
    if given[0] == 1:
        training_loop.Recorder.on_step_begin = fail  # type: ignore[method-assign]


def both(run: Directory, start: Start, *, seconds: float = 0.0, hook: Any = None) -> list[Any]:
    hook = hook or (shared_by_deepspeed if run.spec["settings"].get("sharding") == "deepspeed" else shared)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [start(run, hook=hook, given=(number, port, seconds)) for number in range(2)]


def weights(run: Directory) -> dict[str, Any]:
    (path,) = (run.path / "final").glob("*.safetensors")
    return load_file(path)


@pytest.mark.parametrize("sharding", ["none", "fsdp2", pytest.param("deepspeed", marks=DEEPSPEED)])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_two_processes_make_the_weights_of_one_and_tell_of_them_once(
    mode: str, sharding: str, make: Make, start: Start
) -> None:
    tuning = {"mode": "full"} if mode == "full" else {"mode": "lora", "rank": 4, "alpha": 8}
    fields: dict[str, Any] = {"steps": 20, "tuning": tuning, "eval_every": 10}
    alone = make("sft", name="alone", settings=ROWS, **fields)
    two = make("sft", name="two", settings={**ROWS, "processes": 2, "sharding": sharding}, **fields)
    one = start(alone)
    assert [trainer.wait() for trainer in both(two, start)] == [0, 0], two.errors()
    assert one.wait() == 0, alone.errors()
    found, wanted = weights(two), weights(alone)
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert (found[name] - weight).abs().max() < 1e-5, name
    told = [[(row["event"], row.get("step")) for row in run.events()] for run in (two, alone)]
    assert told[0] == told[1]
    losses = [[row["loss"] for row in run.metrics().values()] for run in (two, alone)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    (kept,) = (two.path / "checkpoints").iterdir()
    assert (kept / "optimizer.bin").exists() == (sharding == "fsdp2"), "on CPUs accelerate divides nothing by itself"


@KINDS
def test_attempts_are_shared_and_the_run_goes_on_after_a_stop(
    sharding: str, make: Make, start: Start, trained: Any
) -> None:
    fields: dict[str, Any] = {
        "on": trained, "train": [task(name) for name in NAMES[:6]], "held_out": False, "steps": 4,
        "settings": {
            "processes": 2, "sharding": sharding, "batch_size": 16, "num_generations": 4, "learning_rate": 3e-3,
            "replay_rows": 1,
        },
        "replay": [sft_row(name) for name in NAMES[:3]],
        "checkpoint_every": 2,
    }  # fmt: skip
    whole, broken = make("grpo", name="whole", **fields), make("grpo", name="broken", **fields)
    trainers = both(broken, start, seconds=0.3)
    broken.until(lambda run: len(run.events("step")) >= 2)
    (broken.path / "CANCEL").touch()
    assert [trainer.wait() for trainer in trainers] == [0, 0], broken.errors()
    assert broken.result["status"] == "cancelled"
    (broken.path / "CANCEL").unlink()
    for run in (broken, whole):
        assert [trainer.wait() for trainer in both(run, start)] == [0, 0], run.errors()
    assert broken.result["digest"] == whole.result["digest"]
    rewards = [{at: each["reward_mean"] for at, each in run.metrics().items()} for run in (whole, broken)]
    assert rewards[0] == rewards[1]


@KINDS
def test_the_best_weights_are_kept_once_and_an_early_end_is_everybodys(sharding: str, make: Make, start: Start) -> None:
    asked = [task(name) for name in NAMES[6:8]]
    settings = {**ROWS, "processes": 2, "sharding": sharding, "patience": 1, "learning_rate": 1e-9}
    run = make(
        "sft", names=NAMES[:6], held_out=False, validation=asked, steps=9, eval_every=1, settings=settings
    )  # fmt: skip
    assert [trainer.wait() for trainer in both(run, start)] == [0, 0], run.errors()
    assert (run.result["early"], run.result["chosen"], run.result["step"]) == (True, 1, 2)


def test_a_divided_adapter_goes_on_from_a_checkpoint_and_is_given_as_a_whole(make: Make, start: Start) -> None:
    settings = {**ROWS, "processes": 2, "sharding": "fsdp2", "gradient_checkpointing": True}
    tuning = {"mode": "lora", "rank": 4, "alpha": 8}
    run = make("dpo", steps=4, checkpoint_every=2, held_out=False, tuning=tuning, settings=settings)
    assert [trainer.wait() for trainer in both(run, start)] == [0, 0], run.errors()
    whole = run.result["digest"]
    (run.path / "result.json").unlink()
    shutil.rmtree(run.path / "checkpoints/step-4")
    assert [trainer.wait() for trainer in both(run, start)] == [0, 0], run.errors()
    assert run.events("training_start")[-1]["resumed_from"] == 2
    assert run.result["digest"] == whole
    assert len(weights(run)) == 2 * 7 * 2, "a pair of matrices for each linear layer of two"


def test_a_process_that_dies_leaves_a_run_that_can_go_on(make: Make, start: Start) -> None:
    run = make("sft", steps=40, held_out=False, checkpoint_every=1, settings={**ROWS, "processes": 2})
    first, second = both(run, start, seconds=0.2)
    run.until(lambda run: len(run.events("checkpoint")) >= 2)
    second.signal(9)
    assert second.wait() == -9
    assert first.wait() == 1
    assert not (run.path / "result.json").exists(), "a death is no failure of the run"
    assert max(run.steps_kept) >= 2


def test_a_failure_that_only_another_process_met_is_told(make: Make, start: Start) -> None:
    run = make("sft", steps=40, held_out=False, settings={**ROWS, "processes": 2})
    trainers = both(run, start, hook=fails_in_the_second)
    assert [trainer.wait() for trainer in trainers] == [1, 1]
    assert (run.result["status"], run.result["kind"], run.result["message"]) == ("failed", "verifier", "it is away")


def test_processes_that_are_not_as_many_as_the_settings_say_are_refused(make: Make, start: Start) -> None:
    run = make("sft", held_out=False, settings={**ROWS, "processes": 2})
    assert start(run).wait() == 1
    assert "torchrun --nproc-per-node 2" in run.result["message"]


def test_a_process_alone_agrees_with_itself() -> None:
    assert (ranks.rank(), ranks.world(), ranks.agreed(3)) == (0, 1, 3)
