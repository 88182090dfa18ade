"""Taking an environment out, with the tasks of one of its sets, as a package for other people's tools.

Held-out tasks go along only when somebody asks for them, and then it is in the ledger: what has left the house is known
outside, and what is measured on it afterwards is worth less.
"""

import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.db import transaction
from django.http import HttpResponseBase, StreamingHttpResponse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.references import current_version
from flywheel.core import envs
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.envs.kinds import KINDS
from flywheel.core.interop.environment_exports import FORMATS, CannotExport, Export, File, check_openings, uncarried
from flywheel.environments import ledger
from flywheel.environments.models import EnvironmentVersion, Opening, Split, TaskSet
from flywheel.environments.tasks.task_rows import core_task

TASKS_MAX = 2_000
"""Of a download by page or API; `manage.py export_environment` takes any number."""
ROWS_AT_ONCE = 500
_REF = re.compile(r"([\w-]+)@v?(\d{1,9})", re.ASCII)


def find(project: Project, ref: str) -> EnvironmentVersion:
    """The environment's version of `name@number`. Raises CannotExport."""
    match = _REF.fullmatch(ref.strip())
    if match is None:
        raise CannotExport(f"{ref[:100]!r} is not of the form environment@version")
    rows = EnvironmentVersion.objects.filter(environment__project=project, environment__name=match[1])
    found = rows.filter(number=match[2]).select_related("environment__project").first()
    if found is None:
        there = ", ".join(str(row) for row in rows.select_related("environment").order_by("-number")[:5])
        raise CannotExport(f"there is no environment {ref}" + (f"; there is {there}" if there else ""))
    return found


def chosen(version: EnvironmentVersion, ref: str = "") -> TaskSet:
    """The task set of `name@version`, or the newest that was frozen under this environment's version.

    Raises CannotExport.
    """
    sets = TaskSet.objects.filter(environment_version=version).select_related(
        "environment_version__environment__project"
    )
    match = _REF.fullmatch(ref.strip()) if ref else None
    if ref and match is None:
        raise CannotExport(f"{ref[:100]!r} is not of the form set@version", field="task_set")
    found = sets.filter(name=match[1], version=match[2]).first() if match else sets.order_by("-pk").first()
    if found is None:
        what = f"no task set {ref}" if ref else "no task set"
        raise CannotExport(f"{what} was frozen under {version}: freeze one first, its tasks are what is exported")
    return found


def splits_of(*, held_out: bool) -> list[str]:
    return [Split.TRAIN.value, Split.HELD_OUT.value] if held_out else [Split.TRAIN.value]


def why_not(version: EnvironmentVersion) -> str:
    """Why the environment cannot be had as a package; empty where it can."""
    return _elsewhere(version) or uncarried(str(version), version.environment.kind, version.config, version.verifier)


def _elsewhere(version: EnvironmentVersion) -> str:
    if not KINDS[version.environment.kind].is_external:
        return ""
    return f"{version.environment} is somebody else's server; its rows and its verdict are had there"


def exported(task_set: TaskSet, splits: Sequence[str]) -> Export:
    """The set's environment with the tasks of these splits, as the writers take it. Raises CannotExport."""
    if problem := _elsewhere(task_set.environment_version):
        raise CannotExport(problem)
    members = task_set.members.filter(split__in=splits)
    present = set(members.order_by().values_list("split", flat=True).distinct())
    kept = tuple(split for split in splits if split in present)
    if not kept:
        raise CannotExport(f"{task_set} has no task of {' or '.join(splits)}")

    def tasks() -> Iterator[tuple[str, envs.Task]]:
        rows = members.select_related("task").order_by("task__number")
        for member in rows.iterator(chunk_size=ROWS_AT_ONCE):
            yield member.split, core_task(member.task)

    version = task_set.environment_version
    return Export(
        name=version.environment.name,
        version=version.number,
        kind=version.environment.kind,
        config=version.config,
        verifier=version.verifier,
        digest=version.digest,
        verifier_digest=version.verifier_digest,
        description=version.environment.description,
        tasks=tasks,
        splits=kept,
        agent=_agent_of(version),
    )


def _agent_of(version: EnvironmentVersion) -> AgentConfig | None:
    """Return what the environment's agent brings today, in no form: whoever attempts the tasks elsewhere has one."""
    agent = version.environment.agent
    asked = current_version(agent) if agent else None
    return replace(asked.config(), form="") if asked else None


@transaction.atomic
def left(task_set: TaskSet, splits: Sequence[str], *, subject: str, actor: Actor, **about: Any) -> None:
    """Note that these tasks leave: in the audit log, and in the ledger where held-out ones are among them. For a
    command it is whoever froze the set."""
    if Split.HELD_OUT in splits:
        ledger.opened(task_set=task_set, kind=Opening.Kind.EXPORT, subject=subject, actor=actor)
    actor.record(project=task_set.project, action="environments.export", subject=task_set, splits=list(splits), **about)


@transaction.atomic
def take(
    *, task_set: TaskSet, format: str, actor: Actor, held_out: bool = False, tasks_max: int | None = TASKS_MAX
) -> tuple[str, Iterator[File]]:
    """The name of the export's folder, and its files. Raises CannotExport, before anything is noted or made."""
    if format not in FORMATS:
        raise CannotExport(f"{format[:100]!r} is not one of {', '.join(FORMATS)}", field="format")
    splits = splits_of(held_out=held_out)
    export = exported(task_set, splits)
    count = task_set.members.filter(split__in=splits).count()
    if tasks_max is not None and count > tasks_max:
        raise CannotExport(
            f"{task_set} has {count} tasks, a download at most {tasks_max}; use manage.py export_environment"
        )
    if problem := why_not(task_set.environment_version):
        raise CannotExport(problem)
    check_openings(export, format)
    subject = f"{FORMATS[format].label} export"
    left(task_set, splits, subject=subject, actor=actor, format=format, tasks=count)
    return f"{export.package}-{format}", FORMATS[format].files(export)


def write(files: Iterable[File], folder: Path) -> int:
    """Into a folder that is new or empty. Returns how many. Raises CannotExport."""
    if folder.exists() and any(folder.iterdir()):
        raise CannotExport(f"{folder} is not empty")
    count = 0
    for path, content in files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if path.endswith(".sh"):
            target.chmod(0o755)
        count += 1
    return count


def zipped(files: Iterable[File], root: str) -> Iterator[bytes]:
    """An archive, sent while it is made; equal files make equal archives."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files:
            about = zipfile.ZipInfo(f"{root}/{path}")
            about.compress_type = zipfile.ZIP_DEFLATED
            about.external_attr = (0o755 if path.endswith(".sh") else 0o644) << 16
            archive.writestr(about, content)
            yield sink.taken()
    yield sink.taken()


def download(*, task_set: TaskSet, format: str, actor: Actor, held_out: bool) -> HttpResponseBase:
    """The answer to a browser or a program that takes it as an archive. Raises CannotExport."""
    folder, files = take(task_set=task_set, format=format, actor=actor, held_out=held_out)
    response = StreamingHttpResponse(zipped(files, folder), content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="{folder}.zip"'
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "no-store"
    return response


class _Sink(io.RawIOBase):
    """The bytes written since somebody last took them."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        content = bytes(data)  # type: ignore[call-overload]
        self._waiting += content
        return len(content)

    def taken(self) -> bytes:
        found = bytes(self._waiting)
        self._waiting.clear()
        return found
