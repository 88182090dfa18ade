"""Stopping what a worker does with an environment's verifier: proofs of its tasks, or a trial."""

from django.db import transaction

from flywheel.accounts.models import User, record
from flywheel.environments.models import Proving, Trial


@transaction.atomic
def stop(*, job: Proving | Trial, actor: User, through: str = "") -> None:
    """Ask for an end; what was proved or said by then stays. Raises StaleState when it is over already."""
    job.cancel()
    what = "proving" if isinstance(job, Proving) else "trial"
    record(project=job.project, actor=actor, action=f"environments.stop_{what}", subject=job, through=through)
