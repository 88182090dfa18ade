"""Models of a hub such as huggingface.co: fetched at one commit, without anything that could run.

    python -m flywheel.core.network.model_hub HUB NAME REVISION DIRECTORY ENDING …

writes `{"commit": …}` or `{"problem": …}` as its last line. It is a program of its own, so that a worker can end it,
and because the libraries of a worker are told to stay offline. Nobody's token is sent: what is fetched is public.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[\w.-]{1,100}/[\w.-]{1,100}", re.ASCII)
_REVISION = re.compile(r"[\w./-]{1,100}", re.ASCII)


NOT_ALLOWED = "no hub is allowed here; the operator sets FLYWHEEL_HUB, for example to https://huggingface.co"


class HubError(ValueError):
    """The model cannot be had from the hub; the message says why, and `field` which of what was asked for is wrong."""

    def __init__(self, message: str, *, field: str = "name") -> None:
        super().__init__(message)
        self.field = field


def check(name: str, revision: str) -> None:
    """Raise HubError for what cannot be the name of a model, or a commit, branch or tag."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise HubError(f"expected owner/name, for example Qwen/Qwen3-0.6B, not {name[:100]!r}")
    if not _REVISION.fullmatch(revision) or ".." in revision:
        problem = f"expected a commit, branch or tag, for example main, not {revision[:100]!r}"
        raise HubError(problem, field="revision")


def fetch(hub: str, name: str, revision: str, place: Path, endings: Sequence[str]) -> str:
    """Write the model's files with these endings, of its top folder, into a directory, and return the commit that they
    are of. Raises HubError."""
    check(name, revision)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError as error:
        raise HubError("huggingface_hub is not installed; install flywheel[train]") from error
    try:
        found: Any = HfApi(endpoint=hub, token=False).model_info(name, revision=revision, files_metadata=True)
        files = [file for file in found.siblings or () if "/" not in file.rfilename]
        size = sum(file.size or 0 for file in files if file.rfilename.endswith(tuple(endings)))
        free = shutil.disk_usage(place).free
        if 2 * size > free:  # it is copied into the storage
            raise HubError(f"it has {size / 1e9:,.1f} GB; twice that is needed, and {free / 1e9:,.1f} GB are free")
        snapshot_download(
            name,
            revision=found.sha,
            endpoint=hub,
            token=False,
            allow_patterns=[f"*{ending}" for ending in endings],
            ignore_patterns=["*/*"],
            local_dir=place,
        )
    except HubError:
        raise
    except Exception as error:  # of its own, of HTTP's, of the network's
        raise HubError(f"{name} cannot be fetched from {hub}: {str(error).strip()[:300]}") from error
    return str(found.sha)


def main(arguments: Sequence[str]) -> None:
    hub, name, revision, place, *endings = arguments
    try:
        told = {"commit": fetch(hub, name, revision, Path(place), endings)}
    except HubError as error:
        told = {"problem": str(error)}
    sys.stdout.write(f"\n{json.dumps(told)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
