"""Fetch weights from a model hub: the worker's side of `flywheel.agents.weights.hub_versions`.

A process of its own fetches them (`flywheel.core.network.model_hub`): it can be ended, knows no database and no keys,
and is not told to stay offline, as the libraries of a worker are.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from django.conf import settings

from flywheel.agents import artifacts
from flywheel.agents.models import HubVersion
from flywheel.agents.weights import hub_versions
from flywheel.edge.jobs import Lease, LeaseLost
from flywheel.system import env
from workers.jobs.training import side_processes
from workers.processes import model_process

POLL_S = 0.2
_NETWORK = ("HTTP_", "HTTPS_", "ALL_PROXY", "NO_PROXY", "http_", "https_", "all_proxy", "no_proxy", "SSL_CERT_")
"""Variables that say how the network is reached."""


class NotFetched(RuntimeError):
    """The weights are not here; the message says why."""

    kind = "hub"


def fetch(lease: Lease) -> None:
    """Make the version that the lease holds."""
    of = ("agent__project", "weights", "adapter", "parent__agent", "created_by")
    job = HubVersion.objects.select_related(*of).get(pk=lease.job.pk)
    if not (hub := env.hub()):
        raise NotFetched("no hub is allowed where the worker runs; the operator sets FLYWHEEL_HUB there too")
    with side_processes.directory(lease, "hub") as place:
        place.mkdir(parents=True)
        commit = _fetched(lease, hub, job, place)
        artifact = artifacts.store(place, job.kind)
        with lease.guard():
            version = hub_versions.finish(job, artifact, commit)
            lease.update(version=version)
            lease.log(f"made {version} of {job.name} at {commit}")


def _fetched(lease: Lease, hub: str, job: HubVersion, place: Path) -> str:
    """Fetch the files into the directory, and return their commit. Raises NotFetched, Cancelled and LeaseLost."""
    module = "flywheel.core.network.model_hub"
    command = [sys.executable, "-m", module, hub, job.name, job.revision, str(place), *sorted(artifacts.ALLOWED)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            cwd=settings.BASE_DIR,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=model_process.environment(*_NETWORK),
        )
        try:
            while process.poll() is None:
                lease.go_on()
                if lease.lost:
                    raise LeaseLost(f"{job} has another owner")
                time.sleep(POLL_S)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        told = _last_word(said.read().decode(errors="replace"))
    if "commit" not in told:
        raise NotFetched(told.get("problem") or f"its process {model_process.ending(process.returncode)}")
    return str(told["commit"])


def _last_word(output: str) -> dict[str, Any]:
    try:
        found = json.loads(output.strip().rpartition("\n")[2])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
