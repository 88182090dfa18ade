"""The memory that a run would need, before it is launched, and beside it what a run took."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from statistics import median
from typing import Any

from flywheel.accounts.models import WorkerDevice
from flywheel.agents import artifacts
from flywheel.agents.models import Artifact, Version
from flywheel.agents.registration import tells_of_tools
from flywheel.core import recipes
from flywheel.core.errors import FieldError
from flywheel.core.recipes import memory_forecast
from flywheel.core.recipes.memory_forecast import Forecast, Lengths, Plan, Proposal, Shapes, UnknownShapes
from flywheel.edge.jobs import State
from flywheel.environments.models import Split, TaskSet
from flywheel.system import devices
from flywheel.training.datasets.dataset_builder import open_rows
from flywheel.training.models import Dataset, TokenPreview, TrainingRun

CHARACTERS = 3
"""Characters of a token, where nobody has counted tokens: few, so that the forecast errs to the safe side."""
READ_MOST = 1000
"""Rows whose characters are counted."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Memory:
    """A forecast of a run's peak memory, and how it compares with the machine's."""

    forecast: Forecast
    lengths: Lengths
    preview: TokenPreview | None
    """That counted the tokens; without one they are estimated from characters."""
    machine: Mapping[str, Any]
    """As the newest run told of it: `{"kind", "name", "memory"}`; empty where none has."""
    proposal: Proposal | None
    """What would fit where the run does not."""

    @property
    def is_too_large(self) -> bool:
        return bool(self.machine) and self.forecast.total > self.machine["memory"]

    def to_json(self) -> dict[str, Any]:
        """The forecast as a run keeps it."""
        return {
            **self.forecast.to_json(),
            "longest": self.lengths.longest,
            "typical": self.lengths.typical,
            "counted": self.preview is not None,
            "device": self.machine.get("kind", "cpu"),
            "memory": self.machine.get("memory"),
        }


def expected_memory(
    *,
    base: Version,
    algorithm: str,
    settings: Mapping[str, Any],
    tuning: Mapping[str, Any],
    dataset: Dataset | None,
    task_set: TaskSet,
    teacher: Version | None = None,
    rows: Rows = (),
) -> tuple[Memory | None, str]:
    """Forecast a run's peak memory, or say why that cannot be done. `rows` are those of a dataset that is not there
    yet; the set's held-out tasks are asked on the way."""
    if base.weights is None:
        return None, f"{base} has no weights here"
    try:
        shapes = _shapes(base.weights)
        here = teacher.weights if teacher and settings.get("teacher_from") != recipes.VLLM else None
        taught = _shapes(here).parameters if here else 0
    except (UnknownShapes, artifacts.ArtifactError) as error:
        return None, str(error)
    if shapes.is_mixture:
        return None, f"{base} is a mixture of experts, and how much memory computing with those takes is not known here"
    preview = _preview(base, dataset) if dataset else None
    lengths = _lengths(base, dataset, rows, preview)
    if lengths is None:
        return None, "there are no rows yet"
    machine = _machine(settings.get("device", "auto"))
    held_out = task_set.members.filter(split=Split.HELD_OUT).count()
    device, size = machine.get("kind", "cpu"), machine.get("memory", 0)
    plan = Plan(shapes, algorithm, settings, tuning, lengths, device, held_out, taught, size)
    found = Memory(memory_forecast.forecast(plan), lengths, preview, machine, None)
    if found.is_too_large:
        modes = _adapters(algorithm, settings)
        found = replace(found, proposal=memory_forecast.proposal(plan, machine["memory"], modes))
    return found, ""


def _adapters(algorithm: str, settings: Mapping[str, Any]) -> list[str]:
    """Modes of an adapter that a worker can tune by and that go with the settings."""
    found = []
    for mode in ("lora", "qlora"):
        with suppress(FieldError):
            recipes.check_mode(algorithm, mode, settings)
            found += [] if WorkerDevice.lacking(mode, settings.get("device", "auto")) else [mode]
    return found


def _shapes(artifact: Artifact) -> Shapes:
    """Raises UnknownShapes and ArtifactError."""
    if "config.json" not in artifact.manifest:
        raise UnknownShapes("its files have no config.json")
    return _shapes_of(artifact.pk)


@lru_cache(maxsize=64)
def _shapes_of(pk: int) -> Shapes:
    """The shapes of stored weights, which never change."""
    artifact = Artifact.objects.get(pk=pk)
    config = json.loads(artifacts.read(artifact, "config.json"))
    tensors: dict[str, list[int]] = {}
    for name in artifact.manifest:
        if name.endswith(".safetensors"):
            tensors |= artifacts.shapes(artifact, name)
    return Shapes.of(config, tensors)


def _machine(device: str) -> dict[str, Any]:
    """The device of this label, or any, as the newest run that got so far told of it."""
    runs = TrainingRun.objects.exclude(machine={})
    of_label = runs.filter(machine__kind=device) if device in devices.LOCAL else runs
    return dict(of_label.order_by("-pk").values_list("machine", flat=True).first() or {})


def _preview(base: Version, dataset: Dataset) -> TokenPreview | None:
    """The newest finished preview of these rows in this base's tokens."""
    found = TokenPreview.objects.filter(dataset=dataset, base__weights=base.weights_id, state=State.SUCCEEDED)
    return found.order_by("-pk").first()


def _lengths(base: Version, dataset: Dataset | None, rows: Rows, preview: TokenPreview | None) -> Lengths | None:
    if preview is not None:
        return Lengths(preview.result["median"], preview.result["longest"])
    if dataset is not None:
        try:
            with open_rows(dataset) as file:
                rows = [json.loads(line) for line in islice(file, READ_MOST)]
        except (FileNotFoundError, ValueError):
            return None
    if not rows:
        return None
    shown = base.tools if base.weights is None or tells_of_tools(base.weights) else []
    around = len(json.dumps(shown)) + len(base.system_prompt)
    found = [-(-(_characters(row) + around) // CHARACTERS) for row in islice(rows, READ_MOST)]
    return Lengths(round(median(found)), max(found))


def _characters(row: Mapping[str, Any]) -> int:
    """Characters of a row's prompt and of the longest answer to it."""
    answers = (row[name] for name in ("completion", "chosen", "rejected") if name in row)
    return _written(row["prompt"]) + max(map(_written, answers), default=0)


def _written(messages: str | Iterable[Mapping[str, Any]]) -> int:
    if isinstance(messages, str):
        return len(messages)
    return sum(len(json.dumps({name: value for name, value in each.items() if value})) for each in messages)
