"""The content of a desk's panes for one trajectory, whichever queue it comes from."""

from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render

from flywheel.accounts.access import PageRequest
from flywheel.failures.buckets.bucket_definitions import every, offered
from flywheel.failures.detectors.detector_record import records
from flywheel.failures.labels.decisions import describe
from flywheel.failures.models import Proposal
from flywheel.failures.pages.desk import conversation_window, decision_form
from flywheel.trajectories.detail import expected_action
from flywheel.trajectories.models import Trajectory


def reading(
    row: Trajectory, written: decision_form.Written, proposals: Sequence[Proposal], start: int | None
) -> dict[str, Any]:
    """The trajectory around the failing step, or from `start` on, and the form with what stands in it."""
    actual = expected_action.own_call(row, written.step)
    return {
        "trajectory": row,
        "written": written,
        "view": conversation_window.view_of(row, written.step, start),
        "best": every(row.project).get(proposals[0].bucket) if proposals else None,
        "buckets": offered(row.project, written.bucket),
        "actual": actual,
        "aligned": expected_action.aligned(actual, written.correction.action if written.correction else None),
        "correction": written.correction,
        "wanted": written.wants_correction,
    }


def label_context(row: Trajectory) -> dict[str, Any]:
    """Return the proposals, each with its detector's record here, the decisions, and the tasks that came of it."""
    decisions = list(row.failures.select_related("labelled_by"))
    proposals = list(row.proposals.all())
    known = records([row.project_id])[row.project_id] if proposals else {}
    return {
        "trajectory": row,
        "current": next((failure for failure in decisions if failure.current), None),
        "decisions": [(failure, describe(row.project, failure)) for failure in decisions],
        "proposals": [(each, every(row.project).get(each.bucket), known.get(each.detector)) for each in proposals],
        "tasks": row.tasks.select_related("environment"),
    }


def pane_again(request: PageRequest, shown: dict[str, Any]) -> HttpResponse:
    """The decision pane alone, in the place of the one that was sent."""
    response = render(request, "failures/_decision.html", shown, status=422)
    response["HX-Retarget"] = "#decision-pane"
    response["HX-Reswap"] = "outerHTML"
    return response
