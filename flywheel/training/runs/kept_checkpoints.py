"""The checkpoints that a run keeps, what validation said of them, and the versions that are made of them.

A run's version has its last weights, or those that did best on validation. Any other checkpoint that is kept can become
a version too, of the same agent: a worker writes its weights as the run would have (`jobs/training/
checkpoint_versions.py`), and it can be evaluated, compared and proposed like any other.
"""

import uuid
from dataclasses import dataclass

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Missing, Refused
from flywheel.training.models import CheckpointVersion, Point, TrainingRun
from flywheel.training.runs.run_files import checkpoints_of

NAMESPACE = uuid.UUID("b0a0c7a2-4f0e-4a38-9a5b-5f2a9a1c7d10")
"""Of the idempotency keys: there is one version for a run and a step."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint that is there, or of which a version was made."""

    step: int
    score: float | None
    """Mean score of the validation tasks at its step; None where nothing was validated then."""
    is_there: bool
    """Whether the run directory still has it, where this machine sees it."""
    job: CheckpointVersion | None
    """What makes its version; None where nobody asked for one."""
    version: Version | None
    """The one with its weights: what the run produced itself, if it is of this step."""

    @property
    def can_be_made(self) -> bool:
        """Whether a version is worth asking for: for the first time, or again after a failure."""
        is_asked = self.job is not None and self.job.state not in (State.FAILED, State.CANCELLED)
        return self.is_there and self.version is None and not is_asked


def kept_of(run: TrainingRun) -> list[Kept]:
    """The run's checkpoints, the newest first."""
    jobs = {job.step: job for job in run.checkpoint_versions.select_related("version__agent")}
    there = checkpoints_of(run)
    steps = sorted({*jobs, *there}, reverse=True)
    points = run.points.filter(kind=Point.Kind.VALIDATION, step__in=steps).values_list("step", "values")
    scores = {step: values.get("overall", values["score"]) for step, values in points}
    versions = {step: job.version for step, job in jobs.items() if job.version}
    if run.produced is not None:
        versions[run.done if run.chosen_step is None else run.chosen_step] = run.produced
    return [Kept(step, scores.get(step), step in there, jobs.get(step), versions.get(step)) for step in steps]


def make_version(run: TrainingRun, step: int, actor: Actor) -> tuple[CheckpointVersion, bool]:
    """Have a worker make a version of a checkpoint, or try again what failed. Returns the job and whether it is new.

    Raises Missing for a checkpoint that is not kept, and Refused for one of a reward model.
    """
    made = run.checkpoint_versions.filter(step=step).first()
    if made is not None:
        return (made.resume(actor) if made.state in (State.FAILED, State.CANCELLED) else made), False
    if not run.makes_policy:
        raise Refused(f"{run} trains a reward model, which is no version", field="step")
    there = checkpoints_of(run)
    if step not in there:
        kept = f"it keeps those of steps {', '.join(map(str, sorted(there)))}" if there else "it keeps none here"
        raise Missing(f"{run} keeps no checkpoint of step {step}; {kept}", field="step")
    return CheckpointVersion.submit(
        key=uuid.uuid5(NAMESPACE, f"{run.pk} {step}"),
        actor=actor,
        entry="training.make_checkpoint_version",
        about={"subject": run, "step": step},
        project=run.project,
        run=run,
        step=step,
    )
