"""Stopping what a worker does with an environment's verifier: proofs of its tasks, or a trial."""

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.environments.models import Proving, Trial


@transaction.atomic
def stop(*, job: Proving | Trial, actor: Actor) -> None:
    """Ask for an end; what was proved or said by then stays. Raises StaleState when it is over already."""
    job.cancel()
    what = "proving" if isinstance(job, Proving) else "trial"
    actor.record(project=job.project, action=f"environments.stop_{what}", subject=job)
