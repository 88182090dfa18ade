"""The example of a world, as an environment of its own; and a worker that carries out what waits for one."""

from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import State
from flywheel.environments.models import Environment, PlayTurn, Proving, WorldTrial
from flywheel.environments.pages.world_editor.world_forms import STARTER
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from tests.conftest import Cast
from workers.jobs import draft_trials, playground_moves, task_proofs

HANDLERS: dict[Any, Any] = {
    PlayTurn: playground_moves.make_moves,
    Proving: task_proofs.prove_tasks,
    WorldTrial: draft_trials.try_world,
}
OWN = {"orders": {"1003": {"customer": "ann@example.com", "item": "lamp", "price": 40.0, "status": "open"}}}
CANCELLED = {
    "wanted": [{"type": "state", "paths": {"/orders/1003/status": "cancelled"}, "rest": "same"}],
    "solution": [{"tool": "cancel", "arguments": {"order_id": "1003"}}],
}


def shop(cast: Cast, name: str = "shop", **config: Any) -> Environment:
    return environment_versions.environment(
        project=cast.project,
        name=name,
        actor=Actor(cast.builder),
        config={"source": STARTER, **config},
        verifier={"kind": "world"},
        terms=Terms("world", held_out_share=0.5),
    )


def work() -> None:
    """Carry out every job of a world that waits."""
    for model, handler in HANDLERS.items():
        for job in model.objects.filter(state=State.QUEUED).order_by("pk"):
            if (lease := model.claim(job.pk)) is not None:
                with lease:
                    handler(lease)
