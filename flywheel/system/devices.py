"""Devices that a worker offers to training runs, by label.

`cuda` are GPUs, by the names that CUDA_VISIBLE_DEVICES gives them; `cpu` are runs that share the machine's cores, `ray`
runs that the worker follows on a Ray cluster, both by numbers. No torch is asked: whoever asks shall stay small.
"""

import os
from importlib import metadata
from pathlib import Path

from flywheel.system import env

LABELS = ("cuda", "cpu", "ray")
"""The first that is there is what a run gets which asks for none, but for Ray, which is asked for by name."""
LOCAL = LABELS[:2]
WORDS = {"cuda": ("GPU", "GPUs"), "cpu": ("CPU slot", "CPU slots"), "ray": ("Ray slot", "Ray slots")}


def offered() -> dict[str, list[str]]:
    """The devices of this process's worker, by label. Raises BadSetting."""
    names, asked = gpus(), env.devices()
    if asked is None:
        asked = ({"cuda": len(names)} if names else {"cpu": 1}) | {"ray": 1}
    if not env.ray_address():
        asked = {**asked, "ray": 0}
    numbered = [str(number) for number in range(max(asked.values()))]
    known = dict.fromkeys(LABELS, numbered) | {"cuda": names or ([] if env.serve_gpus() else numbered)}
    return {label: found for label in LABELS if (found := known[label][: asked.get(label, 0)])}


def counted(number: int, label: str) -> str:
    """A number of devices in words: `1 GPU`, `2 CPU slots`."""
    return f"{number} {WORDS[label][number != 1]}"


def gpus() -> list[str]:
    """Names of the GPUs that this process may use and that are not vLLM's; none where torch is the build without
    CUDA."""
    return [name for name in _usable() if name not in env.serve_gpus()]


def present() -> list[str]:
    """Names of the GPUs that this process may see, whatever can be computed on them here."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for part in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if (name := part.strip())]
    found = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted(filter(str.isdigit, found), key=int)


def _usable() -> list[str]:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return present()
    try:
        if metadata.version("torch").endswith("+cpu"):
            return []
    except metadata.PackageNotFoundError:
        return []
    return present()
