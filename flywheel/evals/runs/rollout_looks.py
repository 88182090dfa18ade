"""Looks at the rollouts of a run: noted where they are held out, refused where they are sealed."""

from collections.abc import Iterable

from django.core.exceptions import PermissionDenied

from flywheel.accounts.actors import Actor
from flywheel.environments import ledger
from flywheel.environments.models import Opening, Split
from flywheel.evals.models import EvalRun


class Sealed(PermissionDenied):
    """Nobody sees what came of single tasks of a sealed part; the message says where the numbers stand."""


def note_look(run: EvalRun, actor: Actor, kind: Opening.Kind = Opening.Kind.PAGE, *, anew: bool = True) -> None:
    """Somebody is to see rollouts of the run: noted in the ledger where they are held out. Not `anew`: on a page that
    is open and asks again by itself. Raises Sealed for those that nobody may see."""
    refuse_sealed(run)
    if run.split == Split.HELD_OUT and run.done:
        ledger.opened(task_set=run.task_set, kind=kind, subject=run, actor=actor, anew=anew)


def note_looks(runs: Iterable[EvalRun], actor: Actor) -> None:
    """The same of several, each of which is seen beside the others."""
    for run in runs:
        note_look(run, actor)


def refuse_sealed(run: EvalRun) -> None:
    """Raise Sealed for a run whose single attempts are for nobody's eyes."""
    if run.split == Split.SEALED:
        raise Sealed(f"{run} ran sealed tasks: only the overall result is shown, with its candidate")
