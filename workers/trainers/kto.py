"""Kahneman-Tversky optimisation: TRL's KTOTrainer on `{"task_id", "prompt", "completion", "label"}` rows."""

import random
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from flywheel.core.envs import Environment
from workers.processes import model_process
from workers.trainers.run import run_spec
from workers.trainers.run.run_directory import Run, main
from workers.trainers.run.run_failures import TrainingError

Row = Mapping[str, Any]


def train(run: Run) -> None:
    # The libraries take seconds to load; the run directory is owned and its data checked by then.
    env, data = run_spec.opened(run.spec)
    good, bad = _kinds(data)
    if not good or not bad:
        missing = "bad" if good else "good"
        aside = f" among those left after {data.set_aside} were kept to validate on" if data.set_aside else ""
        how = f"add {missing} ones" + (", lower validation_share or take another seed" if aside else "")
        raise TrainingError("data", f"no answer is called {missing}{aside}: KTO needs good and bad ones; {how}")
    with model_process.loading():
        from workers.trainers import training_loop
        from workers.trainers.weights import trained_policy

    loaded = trained_policy.load(run)
    trainer = build(run, loaded, env, data)
    limit, words = trained_policy.longest(loaded.model, run.spec.settings)
    _check_lengths(run, trainer.train_dataset, len(data.train), limit, words)
    # Rows that TRL left out leave a short last batch, and the KL of a single row would be its own answer's.
    trainer.args.dataloader_drop_last = len(trainer.train_dataset) >= trainer.args.per_device_train_batch_size
    training_loop.drive(run, trainer, loaded, env, data)


def build(run: Run, loaded: Any, env: Environment, data: run_spec.Data) -> Any:
    """TRL's trainer of the policy `loaded`, with its answers in tokens. Raises TrainingError."""
    with model_process.loading():
        from trl.trainer.kto_config import KTOConfig
        from trl.trainer.kto_trainer import KTOTrainer

        from workers.trainers import training_loop
        from workers.trainers.weights import trained_policy

    settings = run.spec.settings
    good, bad = _kinds(data)
    limit, _ = trained_policy.longest(loaded.model, settings)
    arguments = training_loop.config(
        KTOConfig,
        run.spec,
        output_dir=str(run.work),
        max_length=limit,
        beta=settings["beta"],
        desirable_weight=settings["desirable_weight"] or len(data.train) / (2 * max(len(good), 1)),
        undesirable_weight=settings["undesirable_weight"] or len(data.train) / (2 * max(len(bad), 1)),
    )
    rows = ordered(good, bad, settings["batch_size"], run.spec.seed)
    return KTOTrainer(
        model=loaded.model,
        ref_model=trained_policy.reference(run, loaded),
        args=arguments,
        train_dataset=trained_policy.training_rows(rows, ("row", "prompt", "completion", "label"), env),
        processing_class=loaded.tokenizer,
        peft_config=loaded.lora,
    )


def _kinds(data: run_spec.Data) -> tuple[list[Row], list[Row]]:
    """Good rows and bad ones, each with its place in the data as `row`."""
    rows: list[Row] = [{**row, "row": place} for place, row in enumerate(data.train)]
    return [row for row in rows if row["label"] is True], [row for row in rows if row["label"] is False]


def ordered(good: Sequence[Row], bad: Sequence[Row], batch: int, seed: int) -> list[Row]:
    """The rows in the order of every epoch: each batch has both kinds as the whole has them, and is full.

    TRL draws rows in their order, since it has paired each prompt with the answer of the row before it in the batch to
    estimate the KL. A short last batch would weigh its rows more; the first rows are learnt twice instead.
    """
    drawn = random.Random(seed)
    placed = [
        ((at + 0.5) / len(kind), row) for kind in (good, bad) for at, row in enumerate(drawn.sample(kind, len(kind)))
    ]
    rows = [row for _, row in sorted(placed, key=lambda each: each[0])]
    return list(islice(cycle(rows), len(rows) + -len(rows) % batch))


def _check_lengths(run: Run, prepared: Any, rows: int, limit: int, words: str) -> None:
    """TRL drops rows whose prompt alone is too long and cuts the others without a word."""
    columns = (prepared[name] for name in ("row", "prompt_ids", "completion_ids"))
    lengths = {place: len(prompt) + len(completion) for place, prompt, completion in zip(*columns, strict=True)}
    if not lengths:
        raise TrainingError("data", f"every prompt alone reaches {words}: nothing is left to learn")
    if len(set(prepared["label"])) < 2:
        raise TrainingError("data", f"only one kind of answer is left: the prompts of the others alone reach {words}")
    if len(lengths) < rows:
        run.warn(f"{rows - len(lengths)} of {rows} rows are left out: their prompt alone reaches {words}")
    if cut := sum(length > limit for length in lengths.values()):
        run.warn(f"{cut} of {rows} rows go beyond {words}; what was beyond it is cut off")


if __name__ == "__main__":
    raise SystemExit(main("kto", train))
