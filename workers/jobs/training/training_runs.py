"""Carry out a training run: see that it may train, start the trainer as a process of its own, follow its run
directory, keep what it made.

The trainer knows no database and the database knows no trainer; this is the place between them. A trainer that is
killed is started again and resumes from its newest checkpoint; one that keeps dying at the same step is given up.
When this process loses its lease or dies, its trainer ends too (end of its stdin), so nothing trains unowned; one on a
Ray cluster goes on, and its next owner finds it.
"""

import contextlib
import errno
import hashlib
import json
import logging
import shutil
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.db import InterfaceError, OperationalError
from django.utils.dateparse import parse_datetime

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents import artifacts
from flywheel.agents.models import Artifact, RewardModel, Version
from flywheel.agents.weights import lora_adapters
from flywheel.core import digests, envs, recipes
from flywheel.core.recipes.memory_forecast import ASKED_MOST
from flywheel.core.verifiers import reward_model_rules
from flywheel.edge.jobs import Lease, LeaseLost, State
from flywheel.edge.refusals import Refused
from flywheel.environments import ledger
from flywheel.environments.models import Opening, Split, TaskSet
from flywheel.environments.versions import reward_parts
from flywheel.evals.models import EvalRun
from flywheel.evals.runs import submission
from flywheel.evals.serving.loaded_adapters import base_name
from flywheel.training.datasets import dataset_builder
from flywheel.training.launch import launch_estimate, reward_lock, run_budgets
from flywheel.training.launch.validation_split import named_tasks, validation_tasks
from flywheel.training.models import Dataset, Point, TrainingRun
from flywheel.trajectories.formats.values.hostile_json import plain
from workers.jobs.training import leak_watch, run_broker, trainer_process, training_attempts
from workers.jobs.training.ray_jobs import RayTrainer
from workers.jobs.training.run_broker import RunBroker
from workers.jobs.training.trainer_process import Trainer, TrainingFailed
from workers.trainers.run import checkpoints

log = logging.getLogger(__name__)

POLL_S = 0.5
MAX_DEATHS = 3
"""A trainer that dies so often without getting further is given up."""
ATTEMPTS_MOST = 2_000
"""Attempts of a run that are kept as trajectories."""
CHUNK = 8_000_000
"""Bytes of events that are read at once."""
LEVELS = {"warning": "warning", "training_error": "error"}
NAMESPACE = uuid.UUID("3f6d2f0a-5a2c-4c43-9b6e-0b6a52b1a7de")
"""Of the idempotency keys of evals that follow from runs."""


def train(lease: Lease) -> None:
    """Carry out the run that the lease holds."""
    weights = ("base__agent", "base__weights", "base__adapter", "teacher__weights", "teacher__adapter")
    measured = ("task_set__environment_version__environment", "baseline")
    run = TrainingRun.objects.select_related("dataset", "replay", *weights, *measured).get(pk=lease.job.pk)
    if problem := reward_lock.refusal(run):
        raise TrainingFailed("reward_audit", problem)
    if problem := leak_watch.refusal(lease, run):
        raise TrainingFailed("contamination", problem)
    place = run.directory
    try:
        prepare(run, place)
        _forget_last_ask(place)
    except OSError as error:
        kind = "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "run_directory"
        raise TrainingFailed(kind, f"the run directory cannot be prepared: {error.strerror or error}") from error
    with run_broker.broker_of(lease, run) as broker:
        _follow_until_done(lease, run, place, broker)
    if lease.job.state == State.RUNNING:
        _keep(lease, run, place)


def prepare(run: TrainingRun, place: Path) -> None:
    """Write the run directory's `spec.json` and data, unless a previous owner did, and see that its base is there."""
    if (place / "spec.json").exists():
        check_spec(run, place)
        return
    (place / "data").mkdir(parents=True, exist_ok=True)
    data = {
        "train": write_rows(place / "data" / "train.jsonl", dataset_rows(run.dataset), run.dataset.rows),
        "held_out": _write_tasks(place / "data" / "held_out.jsonl", named_tasks(run, Split.HELD_OUT)),
    }
    if run.replay is not None:
        data["replay"] = write_rows(place / "data" / "replay.jsonl", dataset_rows(run.replay), run.replay.rows)
    if tasks := validation_tasks(run):
        data["validation"] = _write_tasks(place / "data" / "validation.jsonl", tasks)
    elif run.makes_policy and run.settings.get("validation_share"):
        run.note(
            "no validation: its train tasks come from a single source; the last step's weights become the version",
            "warning",
        )
    aside = place / "spec.json.aside"
    aside.write_bytes(digests.canonical(spec_of(run, data)))
    aside.rename(place / "spec.json")


def spec_of(run: TrainingRun, data: dict[str, Any]) -> dict[str, Any]:
    """The content of `spec.json`, with references resolved. `data` names the files of rows."""
    every = launch_estimate.eval_interval(run.settings["steps"])
    spec = {
        "run": str(run),
        "algorithm": run.algorithm,
        "seed": run.seed,
        **_sources(run),
        "environment": _environment(run),
        "tuning": run.tuning,
        "settings": run.settings,
        "eval": {"every": every, "limit": ASKED_MOST},
        "checkpoint_every": every,
        "keep_attempts": ATTEMPTS_MOST,
        "data": data,
    }
    if models := _reward_models(run):
        spec["reward_models"] = models
    if "validation" in data or not run.makes_policy:
        limit = run.settings["validation_tasks"]
        spec["validation"] = {"every": run.settings["validation_every"] or every, "limit": limit}
    if run.reward_recipe:
        spec["reward"] = run.reward_recipe.spec
    if run.environment_weights:
        spec["environment_weights"] = run.environment_weights
    if recipes.samples_elsewhere(run.settings):
        assert run.base.weights is not None
        spec["served_base"] = base_name(run.base.weights.digest)
    return spec


def _sources(run: TrainingRun) -> dict[str, Any]:
    """The run's start: its base, and the adapter on it or None; and its teacher, where it has one."""
    if run.teacher is None:
        return _weights(run.base)
    if (place := run.settings.get("teacher_from")) == recipes.ENDPOINT:
        return _weights(run.base) | {"teacher": {"hosted": run.teacher.digest, "model": run.teacher.endpoint["model"]}}
    return _weights(run.base) | {"teacher": _weights(run.teacher, is_served=place == recipes.VLLM)}


def _reward_models(run: TrainingRun) -> dict[str, dict[str, str]]:
    """The reward models that the run's verifiers and its recipe ask, by the digest that their parts have of them."""
    asking = [task_set.environment_version.verifier for task_set in run.task_sets]
    asking += [run.reward_recipe.spec] if run.reward_recipe else []
    found = [reward_parts.models_of(run.project, spec) for spec in asking]
    return {digest: _source(model.weights) for each in found for digest, model in each.items()}


def _weights(version: Version, *, is_served: bool = False) -> dict[str, Any]:
    assert version.weights is not None
    told = {name: value for name in ("chat_template_kwargs",) if (value := version.endpoint.get(name))}
    adapter = _source(version.adapter) if version.adapter else None
    found = {"base": {**_source(version.weights), **told}, "adapter": adapter}
    if is_served and adapter is None:  # in a shared batch vLLM's CPU build answers for the bare base with another's
        place = lora_adapters.identity(version.weights)
        found["adapter"] = {"path": str(place), "digest": checkpoints.directory_digest(place)}
    return found | ({"served_base": base_name(version.weights.digest)} if is_served else {})


def _environment(run: TrainingRun) -> dict[str, Any]:
    """The environment of the run's tasks; of a mix, all of them by name."""
    versions = [task_set.environment_version for task_set in run.task_sets]
    found = {
        each.environment.name: {"kind": each.environment.kind, "config": each.config, "verifier": each.verifier}
        for each in versions
    }
    first, agent = versions[0].environment.name, {"agent": run.base.config().to_json()}
    if not run.dataset.is_placed:
        return found[first] | agent
    return {"kind": "mixed", "config": {"environments": found, "first": first}, "verifier": {}} | agent


def check_spec(run: TrainingRun, place: Path) -> None:
    """Refuse a directory that was left by another run of the same number, as when a database is made anew."""
    spec = json.loads((place / "spec.json").read_bytes())
    sources = _sources(run)
    reward = run.reward_recipe.spec if run.reward_recipe else None
    found = [spec.get(name) for name in ("algorithm", "seed", "settings", "tuning", "reward", *sources)]
    wanted = [run.algorithm, run.seed, run.settings, run.tuning, reward, *sources.values()]
    found += [spec["data"].get("replay", {}).get("sha256"), spec.get("environment_weights", {})]
    wanted += [run.replay and run.replay.digest, run.environment_weights]
    if found != wanted or spec["data"]["train"]["sha256"] != run.dataset.digest:
        raise TrainingFailed("run_directory", f"{place.name} in the runs directory holds another run; move it away")


def _source(artifact: Artifact) -> dict[str, str]:
    """An artifact as a spec names it. A trainer's digest of a directory leaves the sizes out that a manifest has."""
    return {"path": str(artifacts.local(artifact)), "digest": checkpoints.digest_of(artifact.manifest)}


def dataset_rows(dataset: Dataset) -> bytes:
    """The file of a dataset's rows. Raises TrainingFailed where it is not what it was."""
    try:
        with dataset_builder.open_rows(dataset) as file:
            content = file.read()
    except FileNotFoundError as error:
        raise TrainingFailed("data", f"the rows of {dataset} are missing from the storage") from error
    if hashlib.sha256(content).hexdigest() != dataset.digest:
        raise TrainingFailed("data", f"the rows of {dataset} are damaged: they are not what their digest says")
    return content


def _forget_last_ask(place: Path) -> None:
    """A resumed run is not asked to stop any more, and how the last trainer ended is not how this one ends."""
    (place / "CANCEL").unlink(missing_ok=True)
    if trainer_process.result_of(place).get("status") != "completed":
        (place / "result.json").unlink(missing_ok=True)


def _follow_until_done(lease: Lease, run: TrainingRun, place: Path, broker: RunBroker | None) -> None:
    deaths, died_at = 0, -1
    while True:
        if lease.lost:
            raise LeaseLost(f"{run} has another owner")
        trainer = _start(run, place, broker)
        try:
            lease.log(f"trainer started, {trainer.name}")
            spent = _follow(lease, run, place, trainer, broker)
        except Exception as error:
            if not isinstance(error, LeaseLost | OperationalError | InterfaceError):  # it is not given to another owner
                with contextlib.suppress(TrainingFailed):
                    trainer.stop()
            raise
        finally:
            trainer.leave()
        result = trainer_process.result_of(place)
        if result.get("status") == "completed":
            return
        if result.get("status") == "failed" and not lease.cancelled:
            raise TrainingFailed(result["kind"], result["message"])
        if result.get("status") == "cancelled" or lease.cancelled or spent:
            by_budget = {} if lease.cancelled or not spent else {"error": spent, "error_kind": run_budgets.SPENT}
            lease.finish(State.CANCELLED, **by_budget)
            return
        deaths, died_at = (deaths + 1 if run.done == died_at else 1), run.done
        how = trainer.ending
        if deaths >= MAX_DEATHS:
            words = trainer_process.last_words(place)
            said = f"the trainer died {deaths} times at step {run.done}, the last time {how}: {words}"
            raise TrainingFailed("trainer_died", said)
        lease.log(f"the trainer died, {how}; it resumes from its newest checkpoint", "warning")


def _start(run: TrainingRun, place: Path, broker: RunBroker | None) -> Trainer:
    """Start the run's trainer on its devices, or find the one that a former owner left on the cluster."""
    module = f"workers.trainers.{recipes.ALGORITHMS[run.algorithm].trainer}"
    processes, label = run.settings.get("processes", 1), run.held["label"]
    if label == "ray":
        return RayTrainer(f"flywheel-{run}-{run.idempotency_key.hex[:12]}", module, place, processes)
    trainer_process.stop_orphan(place)
    told = trainer_process.told_of_vllm(run.settings)
    gpus = run.held["names"] if label == "cuda" else []
    return trainer_process.start(
        module, place, *told, processes=processes, gpus=gpus, broker=broker.path if broker else ""
    )


def _follow(lease: Lease, run: TrainingRun, place: Path, trainer: Trainer, broker: RunBroker | None) -> str:
    """Read along until the trainer has ended, by itself or asked to. Return which limit of the budget was reached."""
    asked_at, spent = 0.0, ""
    while True:
        ended = not trainer.is_alive()
        while _read_events(lease, run, place):
            spent = spent or run_budgets.spent(run)
        training_attempts.store_waiting(lease, run, place)
        if broker is not None and broker.follow(lease):
            spent = spent or run_budgets.spent(run)
        if ended:
            return spent
        if lease.lost:
            raise LeaseLost(f"{run} has another owner")
        if (lease.cancelled or spent) and not asked_at:
            (place / "CANCEL").touch()
            asked_at = time.monotonic()
            lease.log(f"{spent}: asked the trainer to save and stop" if spent else "asked the trainer to save and stop")
        if asked_at and time.monotonic() - asked_at > trainer.grace_s:
            trainer.stop()
            lease.log("the trainer did not stop in time and was killed; its newest checkpoint is kept", "warning")
            return spent
        time.sleep(POLL_S)


def _read_events(lease: Lease, run: TrainingRun, place: Path) -> bool:
    """Bring whole new lines of `events.jsonl` into the database, with how far we read, in one transaction.

    Answers whether there were any.
    """
    path = place / "events.jsonl"
    if not path.exists():
        return False
    if path.stat().st_size < run.events_read:  # another directory than was read before: the run began anew
        run.events_read = 0
    with path.open("rb") as events:
        events.seek(run.events_read)
        content = events.read(CHUNK)
    content = content[: content.rfind(b"\n") + 1]
    if not content:
        return False
    rows = [plain(json.loads(line)) for line in content.splitlines()]  # samples hold a policy's own words
    points = {(p.kind, p.step): p for row in rows if (p := _point(run, row))}
    changes = {"events_read": run.events_read + len(content), **_progress(rows)}
    with lease.guard():
        Point.objects.bulk_create(
            points.values(),
            update_conflicts=True,
            unique_fields=["run", "kind", "step"],
            update_fields=["at", "values"],
        )
        if any(kind == Point.Kind.EVAL for kind, _ in points):
            times = run.points.filter(kind=Point.Kind.EVAL).count()
            for task_set in run.task_sets:
                ledger.opened(
                    task_set=task_set, kind=Opening.Kind.TRAINING, subject=run, actor=Actor(run.created_by), times=times
                )
        for row in rows:
            if text := _event_line(row):
                run.events.create(text=text, level=LEVELS.get(row["event"], "info"), at=_at(row))
        lease.update(**changes)
    for name, value in changes.items():
        setattr(run, name, value)
    return True


def _progress(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of the run that these events move."""
    changes: dict[str, Any] = {}
    for row in rows:
        if row["event"] == "training_start":
            changes |= {"total": row["total_steps"], "done": row["resumed_from"] or 0}
            changes |= {"machine": row["machine"]} if "machine" in row else {}
        elif row["event"] == "step":
            changes["done"] = row["step"]
        elif row["event"] == "checkpoint":
            changes["checkpoint_step"] = row["step"]
    return changes


def _point(run: TrainingRun, row: dict[str, Any]) -> Point | None:
    match row["event"]:
        case "step":
            kind, values = Point.Kind.STEP, row["metrics"]
        case "eval":
            kind, values = Point.Kind.EVAL, _measured(row)
        case "validation":
            kind, values = Point.Kind.VALIDATION, _measured(row)
        case "samples":
            kind, values = Point.Kind.SAMPLES, row["samples"]
        case _:
            return None
    return Point(run=run, kind=kind, step=row["step"], at=_at(row), values=values)


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    of_tasks = (
        "success", "score", "reward", "rewarded", "n", "unscored", "parts", "invalid", "tokens", "latency_ms",
        "slices", "seconds", "environments", "overall", "overall_reward",
    )  # fmt: skip
    names = (*of_tasks, "pair_accuracy", "margin", "loss")
    return {name: row[name] for name in names if name in row}


def _event_line(row: dict[str, Any]) -> str:
    """The line of the run's log that an event deserves; empty for those that are charts."""
    match row["event"]:
        case "training_start":
            start = f"from step {row['resumed_from']}" if row["resumed_from"] else "from the start"
            aside = f", {row['set_aside_rows']} aside for validation" if row.get("set_aside_rows") else ""
            return (
                f"training {start}: {row['train_rows']} rows{aside}, {row['trainable_parameters']:,} weights to train"
            )
        case "checkpoint":
            return f"checkpoint at step {row['step']}"
        case "warning" | "sampler" | "taken_up":
            return str(row["message"])
        case "training_error":
            return f"{row['kind']}: {row['message']}"
        case "training_end":
            early = ", early: validation got no better" if row.get("early") else ""
            chosen = f"; the weights of step {row['chosen']} did best on validation" if row.get("chosen") else ""
            return f"{row['status']} at step {row['step']} after {row['seconds']:.0f} s{early}{chosen}"
    return ""


def _at(row: dict[str, Any]) -> Any:
    return parse_datetime(row["time"])


def _write_tasks(path: Path, tasks: Iterable[envs.Task]) -> dict[str, Any]:
    lines = [json.dumps(task.to_json(), ensure_ascii=False) + "\n" for task in tasks]
    return write_rows(path, "".join(lines).encode(), len(lines))


def write_rows(path: Path, content: bytes, rows: int) -> dict[str, Any]:
    """Write a file of rows, and return it as a spec names it."""
    path.write_bytes(content)
    return {"path": f"data/{path.name}", "sha256": hashlib.sha256(content).hexdigest(), "rows": rows}


def _keep(lease: Lease, run: TrainingRun, place: Path) -> None:
    """Make the trained weights a version, and queue its eval on the same held-out tasks as the baseline's; or a reward
    model."""
    if not run.makes_policy:
        _keep_reward_model(lease, run, place)
        return
    artifact = store_weights(run, place)
    chosen = trainer_process.result_of(place).get("chosen")
    with lease.guard():
        version = make_version(run, artifact, run.created_by, chosen)
        evaluation, why = None, ""
        try:
            evaluation = _evaluate(run, version, run.task_set, f"evaluation of {run.pk}")
        except Refused as error:
            why = str(error)  # such as an adapter that vLLM does not take: what was trained is kept
        lease.update(produced=version, evaluation=evaluation, chosen_step=chosen)
    if evaluation is None:
        lease.log(f"made {version}; it cannot be evaluated as its baseline was: {why}", "warning")
    else:
        lease.log(f"made {version}; its evaluation is eval {evaluation.pk}")
    _evaluate_others(lease, run, version)
    _finish(lease, place)


def _keep_reward_model(lease: Lease, run: TrainingRun, place: Path) -> None:
    artifact = artifacts.store(place / "final", "reward_model")
    canaries = json.loads(artifacts.read(artifact, reward_model_rules.FACTS))
    with lease.guard():
        made = RewardModel.make(run.base, artifact, canaries, run.created_by)
        lease.update(reward_model=made)
    lease.log(f"made {made}; " + (f"it may not judge: {'; '.join(made.problems)}" if made.problems else "it may judge"))
    _finish(lease, place)


def _finish(lease: Lease, place: Path) -> None:
    lease.finish(State.SUCCEEDED)
    for name in ("work", "best", "sampled"):
        shutil.rmtree(place / name, ignore_errors=True)


def store_weights(run: TrainingRun, place: Path) -> Artifact:
    """Store what a directory has in `final/`: the weights of the run, or its adapter. Raises ArtifactError."""
    return artifacts.store(place / "final", "adapter" if run.tuning["mode"] != "full" else "model")


def make_version(run: TrainingRun, artifact: Artifact, by: User, step: int | None) -> Version:
    """The base with these weights or this adapter of the run; the same one for the same artifact."""
    base, is_adapter = run.base, artifact.kind == "adapter"
    of_step = "" if step is None else f", step {step}"
    return Version.make(
        base.agent,
        by,
        base_model=base.base_model,
        endpoint=base.endpoint,
        weights=base.weights if is_adapter else artifact,
        adapter=artifact if is_adapter else None,
        system_prompt=base.system_prompt,
        tools=base.tools,
        sampling=base.sampling,
        form=base.form,
        parent=base,
        note=f"{recipes.ALGORITHMS[run.algorithm].label}, run {run}{of_step}",
    )


def _evaluate_others(lease: Lease, run: TrainingRun, version: Version) -> None:
    """Evaluate a mix on the held-out tasks of its other environments too."""
    for task_set in run.task_sets[1:]:
        with lease.guard():
            try:
                found = _evaluate(run, version, task_set, f"evaluation of {run.pk} on {task_set.pk}")
            except Refused as error:
                run.note(f"{version} cannot be evaluated on {task_set}: {error}", "warning")
            else:
                run.note(f"{found} shows what it does to {task_set}")


def _evaluate(run: TrainingRun, version: Version, task_set: TaskSet, name: str) -> EvalRun:
    """Queue an eval under the same conditions as the baseline's, once for a name. Raises Refused."""
    assert run.baseline is not None
    evaluation, _ = submission.submit(
        key=uuid.uuid5(NAMESPACE, name),
        version=version,
        task_set=task_set,
        actor=Actor(run.created_by),
        settings=submission.RunSettings.of(run.baseline),
    )
    return evaluation
