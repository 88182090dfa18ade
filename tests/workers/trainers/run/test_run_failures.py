"""What goes wrong inside a run ends it with a precise word, and never with half a checkpoint."""

import errno
import json
import shutil
from pathlib import Path

import pytest

from tests.workers.trainers.cast import (
    NAMES,
    TEMPLATE,
    Directory,
    Make,
    Start,
    hungry,
    pair_row,
    sft_row,
    small_files,
    task,
)
from workers.trainers.run import run_failures


def test_a_full_disk_keeps_the_last_checkpoint(make: Make, start: Start) -> None:
    run = make(steps=4, checkpoint_every=2, held_out=False)
    assert start(run).wait() == 0, run.errors()
    kept = run.path / "checkpoints/step-4"
    shutil.rmtree(kept)
    (run.path / "result.json").unlink()
    # Between the sizes of the weights and of the optimizer's state: the disk fills up half-way through a checkpoint.
    weights = (run.path / "checkpoints/step-2/model.safetensors").stat().st_size
    assert start(run, hook=small_files, given=weights + 4096).wait() == 1
    assert (run.result["status"], run.result["kind"]) == ("failed", "disk_full")
    assert run.events()[-1]["kind"] == "disk_full"
    assert run.steps_kept == [2]
    assert not (run.path / "work").exists()

    assert start(run).wait() == 0, run.errors()
    assert run.events("training_start")[-1]["resumed_from"] == 2
    assert run.result["status"] == "completed"


def test_a_run_that_wants_more_memory_than_it_may_have_names_the_setting(make: Make, start: Start) -> None:
    run = make(held_out=False)
    assert start(run, hook=hungry, given=4).wait() == 1
    assert run.result["kind"] == "out_of_memory"
    assert "more than the 4.0 GB of memory that FLYWHEEL_MODEL_MEMORY allows" in run.result["message"]


def test_weights_that_are_no_numbers(make: Make, start: Start, base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(base, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    run = make(on=broken, held_out=False, checkpoint_every=1)
    assert start(run).wait() == 1
    assert run.result["kind"] == "nan"
    assert "loss is not a number at step 1" in run.result["message"]
    assert "loss" not in run.metrics()[1]
    assert not run.events("checkpoint")


def test_a_model_that_does_not_load(make: Make, start: Start, base: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(base, broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    damaged = make(name="damaged", on=broken)
    absent = make(name="absent")
    absent.spec["base"]["path"] = str(tmp_path / "nowhere")
    absent.save()
    swapped = make(name="swapped")
    swapped.spec["base"]["digest"] = "0" * 64
    swapped.save()
    runs = damaged, absent, swapped
    trainers = [start(run) for run in runs]
    assert [trainer.wait() for trainer in trainers] == [1, 1, 1]
    assert {run.result["kind"] for run in runs} == {"model"}
    assert "does not load" in damaged.result["message"]
    assert "is no directory" in absent.result["message"]
    assert "base.digest" in swapped.result["message"]


@pytest.mark.parametrize("algorithm", ["sft", "grpo"])
def test_a_model_that_names_no_end_of_an_answer(
    algorithm: str, make: Make, start: Start, base: Path, tmp_path: Path
) -> None:
    endless = tmp_path / "endless"
    shutil.copytree(base, endless)
    for name, key in (("tokenizer_config.json", "eos_token"), ("config.json", "eos_token_id")):
        kept = json.loads((endless / name).read_text())
        kept.pop(key, None)
        (endless / name).write_text(json.dumps(kept))
    (endless / "generation_config.json").unlink(missing_ok=True)
    run = make(algorithm, on=endless)
    assert start(run).wait() == 1
    assert run.result["kind"] == "model"
    assert "names the token that ends an answer" in run.result["message"]


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "grpo"])
def test_a_template_that_cannot_render_tools(
    algorithm: str, make: Make, start: Start, base: Path, tmp_path: Path
) -> None:
    toolless = shutil.copytree(base, tmp_path / "toolless")
    refusal = "{% if tools %}{{ raise_exception('tools are not supported') }}{% endif %}"
    (toolless / "chat_template.jinja").write_text(refusal + TEMPLATE)
    run = make(algorithm, on=toolless, held_out=False)
    assert start(run).wait() == 1
    assert run.result["kind"] == "model"
    assert "its chat template refuses what the run shows it: tools are not supported" in run.result["message"]


def test_an_adapter_that_does_not_fit(make: Make, start: Start, base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    lora = {"mode": "lora", "rank": 4, "alpha": 8}
    maker = make(name="maker", tuning=lora, steps=1, held_out=False)
    assert start(maker).wait() == 0, maker.errors()
    good = maker.path / "final"
    wide, strange = tmp_path / "wide", tmp_path / "strange"
    for path in (wide, strange):
        shutil.copytree(good, path)
    weights = load_file(good / "adapter_model.safetensors")
    first = next(iter(weights))
    save_file(weights | {first: weights[first].repeat(2, 2)}, wide / "adapter_model.safetensors")
    save_file({f"x{name}": tensor for name, tensor in weights.items()}, strange / "adapter_model.safetensors")
    runs = []
    for path in (wide, strange, tmp_path / "nowhere"):
        run = make(name=f"on-{path.name}", tuning=lora, steps=1, held_out=False)
        run.spec["adapter"] = {"path": str(path), "digest": ""}
        run.save()
        runs.append((run, start(run)))
    for run, trainer in runs:
        assert trainer.wait() == 1
        assert run.result["kind"] == "adapter", run.result
    assert "does not fit" in runs[0][0].result["message"]


def test_a_verifier_that_always_raises(make: Make, start: Start, trained: Path) -> None:
    targets = [task(name, target={"no": "tool"}) for name in NAMES]
    learning = make("grpo", name="learning", on=trained, train=targets[:8], held_out=False)
    asking = make(name="asking", on=trained, train=[sft_row("Ada")], held_out=targets[1:8])
    trainers = start(learning), start(asking)
    assert [trainer.wait() for trainer in trainers] == [1, 1]
    for run in (learning, asking):
        assert run.result["kind"] == "verifier"
        assert "KeyError" in run.result["message"]


def test_some_unscored_tasks_are_not_zero(make: Make, start: Start, trained: Path) -> None:
    held_out = [task(name) for name in NAMES[8:]] + [task("Cy", target={})]
    train, readable = [task("Ada"), task("Bo", target={})], {"temperature": 0.1}
    run = make("grpo", on=trained, steps=1, train=train, held_out=held_out, settings=readable)
    assert start(run).wait() == 0, run.errors()
    assert (run.events("eval")[0]["n"], run.events("eval")[0]["unscored"]) == (4, 1)
    assert 0 < run.metrics()[1]["unscored"] <= 0.5


def test_rewards_that_are_all_alike_with_nothing_in_reserve(make: Make, start: Start, trained: Path) -> None:
    """The only task takes its own place until the cap; the run ends in order and has learnt nothing."""
    settings = {"temperature": 0.01, "dynamic_sampling": True, "max_resamples": 2}
    run = make("grpo", on=trained, steps=2, train=[task("Ada")], held_out=False, settings=settings)
    assert start(run).wait() == 0, run.errors()
    for metrics in run.metrics().values():
        assert (metrics["zero_variance_groups"], metrics["grad_norm"]) == (1, 0)
        assert metrics["resampled_groups"] == 2 * 2, "two groups, two tries each"


def test_rows_that_are_too_long(make: Make, start: Start) -> None:
    long = sft_row("Ada") | {"prompt": [{"role": "user", "content": "remind Ada " * 40}]}
    some = make(name="some", train=[long, sft_row("Bo")], settings={"max_length": 60}, held_out=False)
    every = make(name="every", train=[long], settings={"max_length": 60}, held_out=False)
    trainers = start(some), start(every)
    assert trainers[0].wait() == 0, some.errors()
    assert "1 of 2 rows are left out" in some.events("warning")[0]["message"]
    assert trainers[1].wait() == 1
    assert every.result["kind"] == "data"


def test_nothing_is_learnt_beyond_the_models_context(make: Make, start: Start) -> None:
    """The model takes 512 tokens, whatever `max_length` says."""
    much = "remind Ada " * 400
    row = sft_row("Ada") | {"completion": [{"role": "assistant", "content": much}]}
    pair = pair_row("Ada") | {"rejected": [{"role": "assistant", "content": much}]}
    cut = make(name="cut", train=[row, sft_row("Bo")], settings={"max_length": 1024}, steps=1, held_out=False)
    pairs = make("dpo", name="pairs", train=[pair, pair_row("Bo")], steps=1, held_out=False)
    trainers = start(cut), start(pairs)
    assert [trainer.wait() for trainer in trainers] == [0, 0], cut.errors() + pairs.errors()
    assert "1 of 2 rows reach all the model takes (512); what was beyond it is cut off" in said(cut)
    assert "1 of 2 pairs go beyond all the model takes (512); what was beyond it is cut off" in said(pairs)


def test_a_task_that_does_not_fit_into_the_models_context_is_not_attempted(
    make: Make, start: Start, trained: Path
) -> None:
    long = task("Cy", prompt="remind Cy " * 400)
    some = make(
        "grpo",
        name="some",
        on=trained,
        steps=1,
        train=[task("Ada"), long],
        held_out=[task("Di"), task("Ed", prompt="remind Ed " * 400)],
    )
    every = make("grpo", name="every", on=trained, train=[long], held_out=False)
    trainers = start(some), start(every)
    assert trainers[0].wait() == 0, some.errors()
    assert "1 of 2 tasks are left out, such as Cy-0: the conversation has " in said(some)
    evaluated = some.events("eval")[0]
    assert (evaluated["n"], evaluated["unscored"]) == (1, 1), "what was never asked is not wrong"
    reasons = [sample["reason"] for sample in some.events("samples")[0]["samples"] if sample["score"] is None]
    assert len(reasons) == 1
    assert "the model takes 512 in all" in reasons[0]
    assert trainers[1].wait() == 1
    assert every.result["kind"] == "data"
    assert every.result["message"].startswith("no task fits into the model's context, such as Cy-0: the conversation")


def said(run: Directory) -> str:
    return "\n".join(event["message"] for event in run.events("warning"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 239808 vs 239700"), "disk_full"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), "out_of_memory"),
        (KeyError("x"), "internal"),
    ],
)
def test_kinds(error: BaseException, kind: str) -> None:
    assert run_failures.classify(error).kind == kind


def test_the_kind_of_what_caused_it() -> None:
    error = ValueError("could not save")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert run_failures.classify(error).kind == "disk_full"
