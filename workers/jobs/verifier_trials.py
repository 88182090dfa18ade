"""Trying a verifier on examples: the worker's side of `environments.trials`."""

from flywheel.edge.jobs import Lease
from flywheel.environments.models import Trial
from flywheel.environments.versions import trials
from workers.judging import project_judges


def try_verifier(lease: Lease) -> None:
    """Task after task, each shown as soon as it is there."""
    trial = Trial.objects.select_related("environment__project", "project").get(pk=lease.job.pk)
    shown = list(trial.report.get("tasks", []))
    runners = project_judges.runners(trial.project, trial.verifier)
    for report in trials.reports(trial, runners):
        lease.go_on()
        shown.append(report)
        if void := project_judges.void_of(runners):
            shown = trials.taken_back(shown, void)
        lease.update(report={"tasks": shown, "judges": project_judges.report_of(runners)}, done=len(shown))
