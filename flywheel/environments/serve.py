"""Serving an environment over NeMo Gym's protocol: whoever speaks it plays against our verifier."""

import ipaddress
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.core import envs
from flywheel.core.interop import gym
from flywheel.core.interop.http import Server
from flywheel.core.verifiers import Runners, Verdict, unscored
from flywheel.environments import sandbox
from flywheel.environments.export import CannotExport, exported, left
from flywheel.environments.models import TaskSet

THROUGH = "manage.py serve_environment"


def server(
    *, task_set: TaskSet, splits: Sequence[str], host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> Server:
    """A server that is bound and not yet running; `token=None` makes one. Held-out tasks are noted in the ledger.

    Raises CannotExport, and OSError for an address that is taken.
    """
    if token == "" and not is_loopback(host):
        raise CannotExport(f"without a token only this machine itself is served, and {host} is not it")
    export = exported(task_set, splits)
    export.refuse_judge()
    env = envs.build(export.kind, export.config, export.verifier, Runners(python=_python))
    tasks = {task.id: task for _, task in export.tasks()}
    made = Server((host, port), gym.Gym(env, tasks), secrets.token_urlsafe(24) if token is None else token)
    left(task_set, splits, subject="served to others", through=THROUGH, format="nemo_gym", tasks=len(tasks))
    return made


def write_rows(task_set: TaskSet, splits: Sequence[str], path: Path) -> int:
    """The tasks as NeMo Gym's JSONL. What is right is not in it. Returns how many."""
    export = exported(task_set, splits)
    env = envs.build(export.kind, export.config, export.verifier, Runners(python=_python))
    lines: Iterator[bytes] = gym.lines(
        env, iter(export.tasks()), environment=export.ref, agent=f"{export.package}_agent"
    )
    count = 0
    with path.open("wb") as file:
        for line in lines:
            file.write(line)
            count += 1
    left(task_set, splits, subject="rows written for others", through=THROUGH, format="nemo_gym rows", tasks=count)
    return count


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _python(source: str, trace: Mapping[str, Any], target: Any) -> Verdict:
    """A Python verifier in the sandbox of this machine."""
    try:
        found = sandbox.score(source, trace, target)
    except sandbox.SandboxError as error:
        return unscored(str(error))
    return Verdict(found["score"], found["reason"], found["parts"] or {})
