"""A version at the sealed part of a task set: the eval that a candidate's final comparison rests on, found or started.

It belongs to an eval of the held-out part and is asked exactly as that was: version, set, samples, sampling, seed,
engine and verifier. So asking twice finds the first, and a version that was asked for one candidate is for the next.
"""

import uuid
from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.core.digests import digest
from flywheel.environments.models import Split
from flywheel.evals.models import EvalRun
from flywheel.evals.runs import submission, unanswered_attempts
from flywheel.evals.runs.void_scores import void_of


def _scoring_fields(like: EvalRun) -> dict[str, Any]:
    """Everything that decides a score."""
    same = ("version_id", "task_set_id", "samples", "seed", "engine", "verifier_digest")
    sampling = submission.sampling_of(like.version, like.sampling)
    return {name: getattr(like, name) for name in same} | {"sampling": sampling}


def find(like: EvalRun) -> EvalRun | None:
    """The sealed eval that belongs to this one: the first that is not void, else the newest; None where none is."""
    rows = EvalRun.objects.filter(split=Split.SEALED, **_scoring_fields(like))
    found = list(rows.select_related("version__agent", "task_set__environment_version").order_by("pk"))
    return next((run for run in found if not void_of(run.judges)), found[-1] if found else None)


def start(like: EvalRun, *, actor: Actor) -> EvalRun:
    """The same; resumed where it did not end well or its server was away for some, and made where there is none.

    Raises Refused.
    """
    run = find(like)
    if run is not None and not void_of(run.judges):
        if unanswered_attempts.can_resume(run):
            submission.resume(run=run, actor=actor)
        return run
    # Two at once make one; a run whose judge was void is kept, and asked anew beside it.
    named = {**_scoring_fields(like), "beside": run.pk if run else None}
    made, _ = submission.submit(
        key=uuid.uuid5(uuid.NAMESPACE_OID, f"sealed {digest(named)}"),
        version=like.version,
        task_set=like.task_set,
        actor=actor,
        split=Split.SEALED,
        settings=submission.RunSettings.of(like),
        is_final=True,
    )
    return made
