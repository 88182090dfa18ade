"""Reading stored spans again, or deriving costs again: the worker's side of `trajectories.operations.rereads`."""

from flywheel.edge.jobs import Lease
from flywheel.trajectories.models import Reread, Trajectory
from flywheel.trajectories.operations import repricing, rereads
from flywheel.trajectories.store import detector_wakeup


def read_again(lease: Lease) -> None:
    """Go on from where the last owner was, and say how far it is."""
    job = lease.job
    assert isinstance(job, Reread)
    total = Trajectory.objects.filter(project=job.project).count()
    done, changed = job.done, job.changed
    lease.update(total=total)
    read = repricing.derive_again if job.is_of_costs else rereads.read_again
    for progress in rereads.reread(job.project, job.at, read):
        lease.update(done=done + progress.done, changed=changed + progress.changed, at=progress.at)
        lease.go_on()
    if not job.is_of_costs:
        detector_wakeup.now(job.project.pk)
