"""For programs: saved views of the list, and one thing done with many trajectories at once."""

import uuid
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from ninja import Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Permission, Scope
from flywheel.edge.answers import JobOut, ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import Missing, Refused, Unreadable, one
from flywheel.edge.schemas import Body, Schema
from flywheel.trajectories.models import Bulk, Trajectory, View
from flywheel.trajectories.operations import bulk_actions
from flywheel.trajectories.search import saved_views
from flywheel.trajectories.search.facets import facets_of
from flywheel.trajectories.search.query import parse
from flywheel.trajectories.search.walk_limit import limited

router = Router(tags=["trajectories"])


class ViewIn(Body):
    name: str
    """The name of your existing view replaces it."""
    q: str = ""
    """A filter, as for `GET /trajectories`."""
    columns: list[str] = []
    """Keys of columns; empty for each person's own choice."""
    is_shared: bool = False
    """Whether all members see it."""
    is_first: bool = False
    """Whether the list opens with it for the key's creator."""


class ViewOut(Schema):
    id: int
    name: str
    q: str
    columns: list[str]
    """Empty for each person's own choice."""
    is_shared: bool
    owner: Ref
    made_at: datetime


class Selection(Body):
    """Exactly one of `q`, `id` and `everything`."""

    q: str = ""
    """A filter, as for `GET /trajectories`. Trajectories that arrive later are not included."""
    id: list[str] | None = None
    """Trace ids, from 1 to 500."""
    everything: bool = False
    """The whole project except rollouts."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same bulk action."""


class TagIn(Selection):
    tags: list[str]
    """Tags to add or remove."""
    remove: bool = False
    """Remove the tags rather than add them."""


class BulkExportIn(Selection):
    format: str = "atif"
    """`atif`, `otlp`, `openai`, `openai-bare` for messages and tools only, or `csv`."""
    cols: list[str] = []
    """Attributes to include, for example `attr.app.release`."""


class BulkQueueIn(Selection):
    queue: int
    """Id of the queue."""


class TasksIn(Selection):
    environment: str
    """Name of the environment."""


class DeleteIn(Selection):
    """Set exactly one of `q` and `id`; `everything` is refused."""

    confirm: str
    """The project's short name, as in its address."""
    reason: str = ""


class Example(Schema):
    trace_id: str
    reason: str


class BulkOut(JobOut):
    action: str
    options: dict[str, Any]
    q: str
    """The filter with relative times replaced by the actual ones."""
    changed: int
    """Trajectories that were changed."""
    skipped: dict[str, int]
    """Number of skipped trajectories, by reason."""
    failed: dict[str, int]
    """Number of failed trajectories, by reason."""
    examples: list[Example]
    """Failed trajectories, at most 100."""
    finished_at: datetime | None

    @staticmethod
    def resolve_changed(row: Bulk) -> int:
        return int(row.report.get("changed", 0))

    @staticmethod
    def resolve_skipped(row: Bulk) -> dict[str, int]:
        return dict(row.report.get("skipped", {}))

    @staticmethod
    def resolve_failed(row: Bulk) -> dict[str, int]:
        return dict(row.report.get("failed", {}))

    @staticmethod
    def resolve_examples(row: Bulk) -> list[dict[str, str]]:
        return list(row.report.get("examples", []))


@router.get("/views", response=list[ViewOut], auth=Key(Scope.READ))
def list_views(request: HttpRequest) -> Any:
    """List saved views: those of the key's creator and those that others share."""
    asked = keyed(request)
    return saved_views.seen_by(asked.project, asked.actor.user)


class FacetValue(Schema):
    label: str
    count: int
    term: str
    """Term to add to `q`."""


class FacetOut(Schema):
    name: str
    values: list[FacetValue]


class FacetsOut(Schema):
    counted: int
    """Number of trajectories that were counted: the newest that match, at most 5,000."""
    facets: list[FacetOut]


@router.get("/facets", response=FacetsOut, auth=Key(Scope.READ))
def get_facets(request: HttpRequest, q: str = "") -> dict[str, Any]:
    """Count the newest matching trajectories by facet. 400 if the filter cannot be read, or would have to read too many
    trajectories."""
    query = parse(q)
    if query.problems:
        raise Unreadable(" ".join(query.problems), field="q")
    project = keyed(request).project
    with limited(query):
        found, counted = facets_of(project, query.apply(Trajectory.objects.filter(project=project), project.pk))
    return {"counted": counted, "facets": [asdict(facet) for facet in found]}


@router.put("/views", response=ViewOut, auth=Key(Scope.REVIEW))
def save_view(request: HttpRequest, wanted: ViewIn) -> View:
    """Save a filter and columns under a name, replacing the key creator's own view of that name."""
    asked = keyed(request)
    return saved_views.save(
        project=asked.project,
        actor=asked.actor,
        wanted=wanted.columns,
        **wanted.dict(exclude={"columns"}),
    )


@router.delete("/views/{pk}", response={204: None}, auth=Key(Scope.REVIEW))
def delete_view(request: HttpRequest, pk: int) -> Status[None]:
    """Delete a view of the key's creator. An admin's key with the scope `admin` can also delete views that others
    share."""
    asked = keyed(request)
    is_admin = Permission.ADMIN in asked.permissions and Scope.ADMIN in asked.key.scopes
    view = saved_views.deletable_by(asked.project, asked.actor.user, is_admin=is_admin).filter(pk=pk).first()
    if view is None:
        raise Missing(f"there is no view {pk} that you may delete")
    saved_views.delete(view=view, actor=asked.actor)
    return Status(204, None)


@router.post("/bulk/tag", response={202: BulkOut}, auth=Key(Scope.REVIEW))
def tag_trajectories(request: HttpRequest, wanted: TagIn) -> Status[Bulk]:
    """Add tags to many trajectories in the background, or remove them. Later telemetry does not override a tag that
    a person has added or removed."""
    return _submit(request, "untag" if wanted.remove else "tag", wanted, {"tags": wanted.tags})


@router.post("/bulk/export", response={202: BulkOut}, auth=Key(Scope.READ))
def export_many(request: HttpRequest, wanted: BulkExportIn) -> Status[Bulk]:
    """Write many trajectories to a file in the background. Download it from `GET /bulk/{id}/file` within a week."""
    return _submit(request, "export", wanted, {"format": wanted.format, "columns": wanted.cols})


@router.post("/bulk/queue", response={202: BulkOut}, auth=Key(Scope.REVIEW))
def queue_trajectories(request: HttpRequest, wanted: BulkQueueIn) -> Status[Bulk]:
    """Send many trajectories to a review queue in the background. Those already in the queue are skipped."""
    return _submit(request, "queue", wanted, {"queue": wanted.queue})


@router.post("/bulk/tasks", response={202: BulkOut}, auth=Key(Scope.BUILD))
def make_tasks_of_many(request: HttpRequest, wanted: TasksIn) -> Status[Bulk]:
    """Create a task from each labelled trajectory in the background. The report gives the reasons for those that
    could not become tasks."""
    return _submit(request, "make_tasks", wanted, {"environment": wanted.environment})


@router.post("/bulk/delete", response={202: BulkOut}, auth=Key(Scope.ADMIN))
def delete_trajectories(request: HttpRequest, wanted: DeleteIn) -> Status[Bulk]:
    """Delete many trajectories permanently in the background, including every copy of their content."""
    if wanted.confirm != keyed(request).project.slug:
        raise Refused("enter the project's short name: deleting cannot be undone", field="confirm")
    if wanted.id is None and not wanted.q.strip():
        raise Refused("select the trajectories to delete; everything cannot be deleted at once", field="q or id")
    return _submit(request, "delete", wanted, {"reason": wanted.reason})


@router.get("/bulk", response=page_of(BulkOut), auth=Key(Scope.READ))
def list_bulk_actions(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List bulk actions, newest first."""
    return paginate(Bulk.objects.filter(project=keyed(request).project), query)


@router.get("/bulk/{pk}", response=BulkOut, auth=Key(Scope.READ))
def get_bulk_action(request: HttpRequest, pk: int) -> Bulk:
    """Return a bulk action with its progress and result."""
    return one(Bulk.objects.filter(project=keyed(request).project), pk=pk)


@router.get("/bulk/{pk}/file", response={200: Any}, auth=Key(Scope.READ))
def get_bulk_file(request: HttpRequest, pk: int) -> Any:
    """Download the file of an export. 404 until the export has finished, and after a week."""
    return bulk_actions.answer(request, get_bulk_action(request, pk))


@router.post("/bulk/{pk}/cancel", response=BulkOut, auth=Key(Scope.REVIEW))
def cancel_bulk_action(request: HttpRequest, pk: int) -> Bulk:
    """Cancel a bulk action; finished work is kept. This requires the same permission as starting the action. 403
    without it, 409 if the action has finished."""
    return _to_change(request, pk).cancel(keyed(request).actor)


@router.post("/bulk/{pk}/resume", response=BulkOut, auth=Key(Scope.REVIEW))
def resume_bulk_action(request: HttpRequest, pk: int) -> Bulk:
    """Resume a failed or cancelled bulk action where it stopped. This requires the same permission as starting the
    action. 403 without it, 409 unless the action has failed or was cancelled."""
    return _to_change(request, pk).resume(keyed(request).actor)


def _to_change(request: HttpRequest, pk: int) -> Bulk:
    asked, job = keyed(request), get_bulk_action(request, pk)
    action = bulk_actions.ACTIONS.get(job.action)
    if action is None or action.permission not in asked.permissions or action.scope not in asked.key.scopes:
        raise PermissionDenied(f"this key may not {job.action} many, and not stop or resume that either")
    return job


def _submit(request: HttpRequest, action: str, wanted: Selection, options: dict[str, Any]) -> Status[Bulk]:
    asked = keyed(request)
    if wanted.id == []:
        raise Refused("no trace id is in it, so that nothing is chosen; leave it out to choose by q", field="id")
    if [wanted.id is not None, bool(wanted.q.strip()), wanted.everything].count(True) != 1:
        raise Refused("select trajectories by one of q and id, or the whole project by everything: true")
    job = bulk_actions.submit(
        project=asked.project,
        actor=asked.actor,
        action=action,
        options=options,
        key=wanted.key or uuid.uuid4(),
        q=wanted.q,
        ids=wanted.id or (),
    )
    return Status(202, job)
