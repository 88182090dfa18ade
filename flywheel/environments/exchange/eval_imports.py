"""An eval of OpenAI's hosted service as an environment with its tasks: its graders a rubric, its items tasks.

What a preview shows is made and taken back in one transaction, so that it cannot differ from what the import makes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.envs.replay import episode_replay
from flywheel.core.interop.openai_evals import Grader, HostedEval, read
from flywheel.core.verifiers import VerifierError, rubric
from flywheel.edge.refusals import Refused, at_field
from flywheel.environments.exchange.task_files import AT_ONCE, Source, Taken, import_tasks, numbered
from flywheel.environments.models import Environment
from flywheel.environments.proofs import judge_endpoints
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment
from flywheel.trajectories.formats.values.hostile_json import plain


@dataclass(frozen=True, slots=True)
class EvalImport:
    """The wishes of whoever imports an eval."""

    name: str
    """Of the new environment."""
    document: Any
    """The eval's object, with or without its runs."""
    request: str = ""
    """A template of what the user asks, such as `{{item.question}}`; empty to take it from the run or the items."""
    held_out_share: float = 0.4
    is_partial: bool = False
    """Continue without the unsupported graders."""


@dataclass(frozen=True, slots=True)
class EvalTaken:
    """An eval that was read, and what was or would be made of it."""

    hosted: HostedEval
    environment: Environment
    report: Taken

    @property
    def graders(self) -> Sequence[Grader]:
        return self.hosted.graders

    @property
    def notes(self) -> list[str]:
        if self.hosted.knows_answers:
            return list(self.hosted.notes)
        return [*self.hosted.notes, "no grader says what a right answer is, so that the proof of a task may lack one"]


class _TakenBack(Exception):
    def __init__(self, made: EvalTaken) -> None:
        self.made = made


def read_eval(project: Project, document: Any, request: str = "") -> HostedEval:
    """Read an eval; a grader that this project has no means for is left. Raises Refused."""
    if plain(document) != document:
        raise Refused("it holds what a database cannot keep, such as a NUL character or deep nesting", field="eval")
    with at_field("eval"):
        hosted = read(document, request)
    return replace(hosted, graders=tuple(_possible(project, grader) for grader in hosted.graders))


def preview_eval(*, project: Project, actor: Actor, wanted: EvalImport, rows: Source | None) -> EvalTaken:
    """Import an eval and take it back. Raises Refused."""
    try:
        with transaction.atomic():
            raise _TakenBack(import_eval(project=project, actor=actor, wanted=wanted, rows=rows))
    except _TakenBack as error:
        return error.made


@transaction.atomic
def import_eval(*, project: Project, actor: Actor, wanted: EvalImport, rows: Source | None) -> EvalTaken:
    """Make an environment of an eval, and tasks of `rows`, or of those that its run brings. Raises Refused."""
    hosted = read_eval(project, wanted.document, wanted.request)
    if not hosted.parts:
        raise Refused(f"none of its graders can be taken: {_list_words(hosted.left)}", field="eval")
    if hosted.left and not wanted.is_partial:
        raise Refused(
            f"{len(hosted.left)} of its {len(hosted.graders)} graders cannot be taken: {_list_words(hosted.left)}; say "
            "that it is to go on without them",
            field="partial",
        )
    if not hosted.request:
        raise Refused("nothing says what the user asks; name it, such as {{item.question}}", field="request")
    if rows is None:
        rows = [json.dumps(item).encode() for item in hosted.items]
    elif not hasattr(rows, "seek"):
        rows = list(rows)
    with at_field("rows"):
        hosted = replace(hosted, items=tuple(item.value for _, item in islice(numbered(rows), AT_ONCE)))
    if hasattr(rows, "seek"):
        rows.seek(0)
    made = environment(
        project=project,
        name=wanted.name,
        actor=actor,
        config={"tools": hosted.tools, "judged": episode_replay.JUDGED[0]},
        verifier=hosted.verifier,
        terms=Terms(kind=episode_replay.KIND, held_out_share=wanted.held_out_share),
        description=f"Imported from the OpenAI eval {hosted.name[:200]}."
        if hosted.name
        else "Imported OpenAI graders.",
    )
    with at_field("rows"):
        report = import_tasks(environment=made, lines=rows, actor=actor, read=hosted.task_of)
        if not report.read:
            raise Refused("there are no items; send the rows of its data along")
        if not report.made:
            raise Refused(f"no item becomes a task; {report.problems[0]}")
    return EvalTaken(hosted, made, report)


def _possible(project: Project, grader: Grader) -> Grader:
    if not grader.parts:
        return grader
    parts = [{"name": part.name, **part.settings} for part in grader.parts]
    spec = {"kind": rubric.KIND, "parts": parts}
    try:
        rubric.read(spec)
        judge_endpoints.check(project, spec)
    except VerifierError as error:
        return replace(grader, state="left", words=str(error).partition(": ")[2], parts=())
    return grader


def _list_words(graders: Sequence[Grader]) -> str:
    return "; ".join(f"{grader.name}: {grader.words}" for grader in graders[:5])


def read_document(text: bytes) -> Any:
    """The objects of a file, JSON or JSON Lines. Raises Refused."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as whole:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise Refused(f"not valid JSON: {whole}", field="eval") from None
