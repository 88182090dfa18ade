"""An environment of ours served over NeMo Gym's protocol: whoever speaks it plays against our verifier, which runs here
with all that a worker has.

To its judges a server is one run. They meet their canaries before anything is served; a judge that one of the later
canaries makes void judges nothing more, and its attempts are answered with status 500. What was judged is remembered in
this process alone: attempts of strangers do not belong into the project's memory, and no thread needs a connection.
"""

import contextlib
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core import envs
from flywheel.core.interop import gym_server
from flywheel.core.interop.environment_exports import CannotExport
from flywheel.core.interop.gym_http import Server
from flywheel.core.network.key_hosts import is_loopback
from flywheel.environments.exchange.environment_packages import chosen, exported, find, left, splits_of
from flywheel.environments.models import TaskSet
from flywheel.environments.proofs.judge_endpoints import void_since
from workers.judging import attempt_verdicts, project_judges
from workers.judging.llm_judge import JudgeError

THROUGH = "manage.py serve_environment"
TELL_EVERY_S = 600.0
"""How often it is told what judges took, while they take something."""


class Hosted(Server):
    """Says on stderr what its judges took and, at once, when one of them judges nothing more."""

    def __init__(self, address: tuple[str, int], served: gym_server.Gym, token: str, task_set: TaskSet) -> None:
        super().__init__(address, served, token)
        self.task_set = task_set
        self.judge = attempt_verdicts.judge_of(served.env)
        self._said: set[str] = set()
        self._told: list[str] = []
        self._told_at = time.monotonic()

    def service_actions(self) -> None:
        """Twice a second, between requests."""
        if self.judge is None:
            return
        for why in (*self.judge.void.values(), self.judge.problem):
            if why and why not in self._said:
                self._said.add(why)
                _say(f"{why}. From here on what it would judge is unscored.")
                self.tell()
        if time.monotonic() > self._told_at + TELL_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Tell what the judges took, where that is news."""
        told = [_taken(name, row) for name, row in self.judge.report.items()] if self.judge else []
        if told != self._told:
            for line in told:
                _say(line)
        self._told, self._told_at = told, time.monotonic()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more, which ends no server
        sys.stderr.write(f"flywheel: {text}\n")


def _taken(name: str, row: Mapping[str, Any]) -> str:
    cost = "at a price that nobody named" if row["cost_usd"] is None else f"${row['cost_usd']:.4f}"
    counts = f"{row['judged']:,} judged, {row['remembered']:,} remembered, {row['canaries']:,} canaries"
    tokens = row["tokens_in"] + row["tokens_out"]
    return f"the judge {name}: {counts}; {row['requests']:,} requests, {tokens:,} tokens, {cost}"


def server(
    *, task_set: TaskSet, splits: Sequence[str], host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> Hosted:
    """A server that is bound and not yet running; `token=None` makes one. Its judges have met their canaries, and
    held-out tasks are noted in the ledger.

    Raises CannotExport, JudgeError for a judge that cannot be asked or believed, and OSError for an address that is
    taken.
    """
    if token == "" and not is_loopback(host):
        raise CannotExport(f"without a token only this machine itself is served, and {host} is not it")
    export = exported(task_set, splits)
    if problem := void_since(task_set.environment_version):
        raise JudgeError(problem, "canary")
    project = task_set.project
    runners = replace(
        attempt_verdicts.RUNNERS,
        judge=project_judges.judge_of(project, export.verifier, remembers=False),
        reward_model=project_judges.reward_models_of(project, export.verifier),
    )
    env = envs.build(export.kind, export.config, export.verifier, runners, export.agent)
    tasks = {task.id: task for _, task in export.tasks()}
    made = Hosted(
        (host, port), gym_server.Gym(env, tasks), secrets.token_urlsafe(24) if token is None else token, task_set
    )
    try:
        if made.judge:
            first = next(iter(tasks.values()))
            made.judge.recall(attempt_verdicts.questions(env, [(first, env.reset(first, 0))]))
            project_judges.refuse(env)
        _note(task_set, splits, "served to others", "nemo_gym", len(tasks))
    except BaseException:
        made.server_close()
        raise
    return made


def write_rows(task_set: TaskSet, splits: Sequence[str], path: Path) -> int:
    """The tasks as NeMo Gym's JSONL. What is right is not in it. Returns how many. Raises CannotExport and OSError."""
    export = exported(task_set, splits)
    env = envs.build(export.kind, export.config, export.verifier, agent=export.agent)
    count = 0
    lines = gym_server.lines(env, iter(export.tasks()), environment=export.ref, agent=f"{export.package}_agent")
    with path.open("wb") as file:
        for line in lines:
            file.write(line)
            count += 1
    _note(task_set, splits, "rows written for others", "nemo_gym rows", count)
    return count


def _note(task_set: TaskSet, splits: Sequence[str], subject: str, format: str, tasks: int) -> None:
    """Note in the ledger and the audit log that tasks left this installation."""
    actor = Actor(task_set.created_by, THROUGH)
    left(task_set, splits, subject=subject, actor=actor, format=format, tasks=tasks)


def opened(
    project: str,
    environment: str,
    task_set: str,
    *,
    held_out: bool,
    host: str,
    port: int,
    token: str | None,
    rows: str | None,
) -> Hosted:
    """The server that `manage.py serve_environment` was asked for, its rows written. Raises as `server` does."""
    found = Project.objects.filter(slug=project).first()
    if found is None:
        raise CannotExport(f"there is no project {project!r}")
    splits = splits_of(held_out=held_out)
    tasks = chosen(find(found, environment), task_set)
    if rows:
        write_rows(tasks, splits, Path(rows))
    return server(task_set=tasks, splits=splits, host=host, port=port, token=token)
