"""A run that should not start does not, and says what is wrong and what would be right."""

import json
from typing import Any

import pytest

from tests.workers.trainers.cast import Directory, Make, Start, pair_row, scored_row, sft_row, task, thumb_row
from workers.trainers.run import run_spec as specs
from workers.trainers.run.run_failures import TrainingError


def refused(run: Directory) -> TrainingError:
    with pytest.raises(TrainingError) as caught:
        specs.data(specs.read(run.path, run.trainer))
    return caught.value


def change(spec: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        spec = spec[parent]
    if value is KeyError:
        del spec[last]
    else:
        spec[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("run", KeyError, "run: is missing; a text is wanted"),
        ("seed", "1", "seed: '1': a whole number of at least 0 is wanted"),
        ("seed", True, "seed: True"),
        ("algorithm", "a2c", "algorithm: 'a2c' is unknown; expected one of sft, dpo"),
        ("algorithm", "grpo", "algorithm: 'grpo': python -m workers.trainers.grpo runs it"),
        ("base.path", "model", "base.path: 'model': an absolute path is wanted"),
        ("base.digest", KeyError, "base.digest: is missing"),
        ("tuning.mode", "half", "tuning.mode: 'half': one of full, lora, qlora is wanted"),
        ("tuning", {"mode": "lora", "rank": 0, "alpha": 8}, "tuning.rank: 0: a whole number of at least 1"),
        ("tuning", {"mode": "lora", "rank": 8}, "tuning.alpha: None"),
        ("settings.learning_rate", 0, "settings.learning_rate: 0 is out of range; expected a number from 1e-09 to 1"),
        ("settings.learning_rat", 1, "settings.learning_rat: is no setting of SFT; did you mean learning_rate?"),
        ("eval.every", 0, "eval.every: 0: a whole number of at least 1"),
        ("checkpoint_every", 1.5, "checkpoint_every: 1.5"),
        ("data.train.path", "../train.jsonl", "data.train.path: '../train.jsonl': a path inside the run directory"),
        ("data.train.sha256", "x", "data.train.sha256: 'x': 64 lower-case"),
        ("reward", {"kind": "rubric", "parts": []}, "reward.kind: 'rubric': reward is wanted"),
        ("reward", {"kind": "reward", "parts": []}, "reward.parts: expected a list of at least one part"),
        ("owner", "me", "owner: 'me': is no field of a spec"),
    ],
)
def test_a_bad_spec_names_the_field(path: str, value: Any, said: str, make: Make) -> None:
    run = make()
    change(run.spec, path, value)
    run.save()
    error = refused(run)
    assert error.kind == "bad_spec"
    assert error.message.startswith(said)


def test_a_spec_that_is_no_json(make: Make) -> None:
    run = make()
    (run.path / "spec.json").write_text("{")
    assert refused(run).message.startswith("spec.json: is not JSON")
    (run.path / "spec.json").unlink()
    assert refused(run).message.startswith("spec.json: cannot be read")


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "grpo"])
def test_a_task_in_both_splits(algorithm: str, make: Make) -> None:
    error = refused(make(algorithm, held_out=[task("Ada", cluster="elsewhere")]))
    assert error.kind == "contamination"
    assert "'Ada-0'" in error.message


def test_a_cluster_in_both_splits(make: Make) -> None:
    error = refused(make("grpo", held_out=[task("Ada", 1)]))
    assert (error.kind, "'c-Ada'" in error.message) == ("contamination", True)
    assert refused(make(name="sft", train=[sft_row("Zoe") | {"cluster": "c-Ada"}], held_out=[task("Ada")])).kind == (
        "contamination"
    )


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "grpo"])
def test_a_request_in_both_splits_with_the_same_answer(algorithm: str, make: Make) -> None:
    same = task("Zoe", prompt=" REMIND  ada.", target=task("Ada")["target"], cluster="elsewhere")
    error = refused(make(algorithm, held_out=[same]))
    assert (error.kind, "same request and answer: 'remind ada" in error.message) == ("contamination", True)


def test_no_cluster_is_no_shared_cluster(make: Make) -> None:
    run = make("grpo", train=[task("Ada", cluster="")], held_out=[task("Bo", cluster="")])
    assert len(specs.data(specs.read(run.path, "grpo")).held_out) == 1


def test_changed_data(make: Make) -> None:
    run = make()
    with (run.path / "data/held_out.jsonl").open("a") as file:
        file.write(json.dumps(task("Eve")) + "\n")
    error = refused(run)
    assert error.kind == "data"
    assert "held_out.jsonl: its SHA-256 is" in error.message


@pytest.mark.parametrize(
    ("algorithm", "row", "said"),
    [
        ("sft", {"task_id": "a", "prompt": []}, "line 1: prompt: a list of messages is wanted"),
        ("sft", {"prompt": [], "completion": []}, "line 1: 'task_id' is missing"),
        ("sft", sft_row("Ada") | {"completion": [{"role": "assistant"}]}, "line 1: 'content' is missing"),
        ("dpo", pair_row("Ada") | {"rejected": "no"}, "line 1: rejected: a list of messages is wanted"),
        ("kto", thumb_row("Ada") | {"label": "good"}, "line 1: label: 'good' is neither true nor false"),
        ("awr", scored_row("Ada") | {"score": None}, "line 1: score: None is not a number"),
        ("awr", scored_row("Ada") | {"group": 1}, "line 1: group: 1 is not a text"),
        ("awr", scored_row("Ada") | {"logprobs": [-0.1, None]}, "line 1: logprobs: a list of numbers is wanted"),
        ("grpo", {"id": "a", "prompt": "b"}, "line 1: 'target' is missing"),
        ("grpo", [1], "line 1: is not an object"),
    ],
)
def test_a_bad_row_is_named(algorithm: str, row: Any, said: str, make: Make) -> None:
    run = make(algorithm)
    run.spec["data"]["train"] = run.write("data/train.jsonl", [row])
    run.save()
    error = refused(run)
    assert error.kind == "data"
    assert said in error.message


def test_a_bad_environment(make: Make) -> None:
    run = make()
    for change_to, said in (
        ({"kind": "chess", "config": {}, "verifier": {}}, "environment.kind: 'chess'"),
        ({"kind": "tool_call", "config": {}, "verifier": {}}, "environment: tools must be a list"),
        (run.spec["environment"] | {"verifier": {"weights": {"style": 1}}}, "environment: weights.style: unknown part"),
    ):
        run.spec["environment"] = change_to
        run.save()
        with pytest.raises(TrainingError) as caught:
            specs.environment(specs.read(run.path, "sft"))
        assert caught.value.kind == "bad_spec"
        assert caught.value.message.startswith(said)


def test_a_refusal_is_recorded(make: Make, start: Start) -> None:
    run = make(held_out=[task("Ada")])
    assert start(run).wait() == 1
    assert (run.result["status"], run.result["kind"]) == ("failed", "contamination")
    (event,) = run.events()
    assert (event["event"], event["kind"], event["message"]) == (
        "training_error",
        "contamination",
        run.result["message"],
    )


def test_settings_that_trl_refuses(make: Make, start: Start) -> None:
    unknown = make(name="unknown", settings={"trl.lerning_rate": 1})
    refuses = make(name="refuses", settings={"trl.optim": "magic"})
    trainers = start(unknown), start(refuses)
    assert [trainer.wait() for trainer in trainers] == [1, 1]
    assert unknown.result["message"] == "settings.trl.lerning_rate: SFTConfig has no such field"
    assert refuses.result["kind"] == "bad_spec"
    assert "magic" in refuses.result["message"]


def test_a_server_samples_adapters_of_a_base_that_is_named(make: Make) -> None:
    run = make("grpo", settings={"rollouts": "vllm"})
    with pytest.raises(TrainingError, match=r"settings.rollouts: vLLM samples adapters, and here all weights"):
        specs.read(run.path, "grpo")
    run.spec["tuning"] = {"mode": "qlora", "rank": 2, "alpha": 4}
    run.save()
    with pytest.raises(TrainingError, match=r"settings.rollouts: .* QLoRA trains on a base in 4 bits"):
        specs.read(run.path, "grpo")
    run.spec["tuning"]["mode"] = "lora"
    run.save()
    with pytest.raises(TrainingError, match="served_base: is missing"):
        specs.read(run.path, "grpo")
    run.spec["served_base"] = "base-1"
    run.save()
    assert specs.read(run.path, "grpo").served_base == "base-1"
