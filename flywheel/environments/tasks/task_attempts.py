"""Which task a trajectory is an attempt at: of an eval that ran here, or of a task that was exported and whose rollouts
came back with what exports have them carry (`core.interop.bundle.identity`).

Such words are a sender's. They are believed where they keep something from being learnt, never the other way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.core.interop.foreign_tasks import is_held_out
from flywheel.environments.models import Split, Task
from flywheel.trajectories.models import Source, Trajectory

_PLACES = ("verifier_metadata", "task_data", "info")
"""Where it stands in rollouts of NeMo Gym, of verifiers and of its classic form."""
_NUMBER = re.compile(r"t-(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Attempt:
    is_measured: bool = False
    """At a task that is not trained on, or nobody knows at which."""
    is_synthetic: bool = False
    """At a task that never happened: what is made of it never did either."""


def attempt_of(source: Trajectory) -> Attempt:
    """Return the known facts of the task behind it; none for what an agent did in use."""
    result = getattr(source, "result", None)  # of an eval, in a room to the right
    tasks = [result.task] if result else []
    told = [about for place in _PLACES if isinstance(about := source.metadata.get(place), dict)]
    tasks += [task for about in told if (task := _named(source, about))]
    is_unknown = source.source in Source.ATTEMPTS and result is None
    return Attempt(
        is_unknown
        or any(task.split != Split.TRAIN for task in tasks)
        or any(is_held_out(about.get("split")) for about in told),
        any(task.is_synthetic for task in tasks) or any(about.get("synthetic") is True for about in told),
    )


def _named(source: Trajectory, about: Mapping[str, Any]) -> Task | None:
    """The task of this project that is named there."""
    environment = str(about.get("environment", "")).partition("@")[0]
    name = _NUMBER.fullmatch(str(about.get("task") or about.get("flywheel_task")))
    rows = Task.objects.filter(project=source.project_id, environment__name=environment)
    return rows.filter(number=int(name[1])).first() if environment and name else None
