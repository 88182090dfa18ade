"""Doing one thing with many trajectories: the worker's side of `trajectories.bulk`."""

from flywheel.edge.jobs import Lease, State
from flywheel.trajectories.models import Bulk
from flywheel.trajectories.operations import bulk_actions
from flywheel.trajectories.store.merge import patiently


def carry_out(lease: Lease) -> None:
    """Go on from where the last owner was, a few at a time. What is done and how far it is are written together."""
    job = lease.job
    assert isinstance(job, Bulk)
    of_all = bulk_actions.keys_of(job)
    if job.total is None:
        lease.update(total=len(of_all))
    for keys in bulk_actions.parts(job, of_all):
        lease.go_on()
        _few(lease, job, keys)
    with lease.guard():
        bulk_actions.forget_keys(job)
        lease.finish(State.SUCCEEDED)


def _few(lease: Lease, job: Bulk, keys: list[int]) -> None:
    done, report = job.done, job.report

    def both() -> None:
        job.report = report
        now = bulk_actions.do(job, keys)
        # The job's row is locked only here, so that the lease is renewed meanwhile.
        lease.update(at=keys[-1], done=done + len(keys), report=now)

    patiently(both)
