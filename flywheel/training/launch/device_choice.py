"""The devices that a run wants: those that its settings name, or the best that a worker has now."""

from collections.abc import Sequence
from typing import Any

from flywheel.accounts.models import WorkerDevice
from flywheel.core import recipes
from flywheel.edge.refusals import Refused
from flywheel.environments.models import RewardRecipe, TaskSet
from flywheel.system import env
from flywheel.training.launch.launch_estimate import expected_questions

AUTO, RAY = "auto", "ray"


def device_label(settings: dict[str, Any]) -> str:
    """The label of the devices of a run with these settings. Empty where it asks for none and no worker lives to say
    what there is: then the first that comes takes it."""
    return WorkerDevice.label_of(str(settings.get("device", AUTO)))


def refuse_cluster(
    algorithm: str, settings: dict[str, Any], task_sets: Sequence[TaskSet], recipe: RewardRecipe | None = None
) -> None:
    """Raise Refused where a run cannot train on the Ray cluster."""
    if not env.ray_address():
        raise Refused("no Ray cluster is set; the operator names it by FLYWHEEL_RAY_ADDRESS", field="settings.device")
    if recipes.asks_server(settings):
        raise Refused(
            "a trainer on a Ray cluster cannot ask the vLLM server: its key would be readable in the job; set rollouts "
            "or teacher_from to trainer",
            field="settings.device",
        )
    if settings.get("rollouts") == recipes.COLOCATE:
        raise Refused(
            "a trainer on a Ray cluster starts no vLLM server: nothing there sets memory aside for it; set rollouts to "
            "trainer",
            field="settings.device",
        )
    if settings.get("teacher_from") == recipes.ENDPOINT:
        raise Refused(
            "its teacher is asked by the worker, which a job on a Ray cluster does not reach; train on another device",
            field="settings.device",
        )
    if expected_questions(algorithm, settings, task_sets, None, recipe):
        raise Refused(
            "its judges and tool servers are asked by the worker, which a job on a Ray cluster does not reach; train "
            "on another device",
            field="settings.device",
        )
