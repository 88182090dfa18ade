"""The devices that a run wants: those that its settings name, or the best that a worker has now."""

from typing import Any

from flywheel.accounts.models import WorkerDevice
from flywheel.system import devices

AUTO = "auto"


def device_label(settings: dict[str, Any]) -> str:
    """The label of the devices of a run with these settings. Empty where it asks for none and no worker lives to say
    what there is: then the first that comes takes it."""
    asked = str(settings.get("device", AUTO))
    if asked != AUTO:
        return asked
    alive = set(WorkerDevice.alive().values_list("label", flat=True))
    return next((label for label in devices.LOCAL if label in alive), "")
