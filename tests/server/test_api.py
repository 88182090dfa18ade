"""Whatever a click changes in the rooms of reviewers, a program can change: each page that takes a POST has its verb in
the API, which the OpenAPI document names, and each that is read too."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import ninja

from flywheel.edge import schemas
from flywheel.server.api import api
from tests.accounts.test_access import PAGE_LIST

SAME = {
    # trajectories
    "trajectories:index": "list_trajectories",
    "trajectories:facets": "get_facets",
    "trajectories:export": "export_trajectories",
    "trajectories:save_view": "save_view",
    "trajectories:delete_view": "delete_view",
    "trajectories:open_with": "save_view",
    "trajectories:bulk_actions": "list_bulk_actions",
    "trajectories:bulk": "get_bulk_action",
    "trajectories:bulk_live": "get_bulk_action",
    "trajectories:start_bulk": "tag_trajectories export_many queue_trajectories make_tasks_of_many delete_trajectories",
    "trajectories:cancel_bulk": "cancel_bulk_action",
    "trajectories:resume_bulk": "resume_bulk_action",
    "trajectories:bulk_file": "get_bulk_file",
    "trajectories:version_from_traffic": "propose_version create_version_from_traffic",
    "trajectories:metrics": "get_metrics",
    "trajectories:metrics_figures": "get_metrics",
    "trajectories:detail": "get_trajectory",
    "trajectories:preview": "get_trajectory",
    "trajectories:conversation": "get_trajectory",
    "trajectories:steps": "get_trajectory_outline",
    "trajectories:step": "get_trajectory",
    "trajectories:turn": "get_trajectory",
    "trajectories:search": "search_trajectory",
    "trajectories:totals": "get_trajectory_totals",
    "trajectories:download": "export_trajectories",
    "trajectories:delete": "delete_trajectory",
    "trajectories:comments": "list_comments",
    "trajectories:say": "comment",
    "trajectories:edit_comment": "edit_comment",
    "trajectories:delete_comment": "delete_comment",
    "trajectories:read_comments": "read_mentions",
    "promotions:lineage": "get_lineage",
    "promotions:turns": "list_turns",
    "promotions:turn": "get_turn",
    "promotions:draft": "get_draft",
    "promotions:start_turn": "start_turn",
    "promotions:freeze_draft": "freeze_draft",
    "promotions:suites": "list_suites get_suites_of_live",
    "promotions:put_suite": "put_suite",
    "promotions:retire_suite": "retire_suite",
    "promotions:run_suite": "run_suite",
    "promotions:suites_beside": "list_candidate_suites",
    "promotions:run_suites": "run_candidate_suites",
    # failures
    "failures:index": "list_buckets list_failures",
    "failures:bucket": "get_bucket",
    "failures:define_bucket": "define_bucket",
    "failures:edit_bucket": "change_bucket",
    "failures:archive_bucket": "change_bucket",
    "failures:steer_bucket": "steer_bucket",
    "failures:close_bucket": "close_bucket",
    "failures:reopen_bucket": "reopen_bucket",
    "failures:answer_recurrence": "answer_recurrence",
    "failures:detectors": "list_detectors",
    "failures:detector": "get_detector",
    "failures:switch_detector": "set_detector",
    "failures:point_detector": "set_detector",
    "failures:agreement": "get_agreement",
    "failures:queue": "list_trajectories",
    "failures:review": "get_labels",
    "failures:corrected": "get_labels",
    "failures:panel": "get_labels",
    "failures:label": "label_trajectory",
    "failures:undo": "undo_label",
    "failures:queues": "list_queues",
    "failures:new_queue": "make_queue",
    "failures:edit_queue": "change_queue",
    "failures:archive_queue": "change_queue",
    "failures:add_to_queue": "add_to_queue",
    "failures:queue_detail": "get_queue list_queue_items",
    "failures:queue_agreement": "get_queue_agreement",
    "failures:take": "take_queue_item",
    "failures:desk": "get_queue",
    "failures:item": "get_queue_item",
    "failures:decide": "review_queue_item",
    "failures:decline": "decline_queue_item",
    "failures:skip": "take_queue_item",
    "failures:requeue": "release_queue_item",
    "failures:hold": "hold_queue_item",
    "failures:take_back": "undo_queue_review",
    "failures:reopen": "reopen_queue_item",
    "failures:similar": "list_clusterings",
    "failures:start_clustering": "cluster_failures",
    "failures:neighbours": "find_similar",
    "failures:clustering": "get_clustering list_clusters",
    "failures:clustering_live": "get_clustering",
    "failures:cancel_clustering": "cancel_clustering",
    "failures:resume_clustering": "resume_clustering",
    "failures:delete_clustering": "delete_clustering",
    "failures:merge_clusters": "merge_clusters",
    "trajectories:costs": "get_derived_costs",
    "trajectories:start_costs": "derive_costs",
    "trajectories:cancel_costs": "cancel_derived_costs",
    "failures:cluster": "get_cluster list_cluster_members",
    "failures:name_cluster": "name_cluster",
    "failures:move_members": "move_cluster_members",
    "failures:take_apart": "take_cluster_apart",
    "failures:send_cluster": "add_to_queue",
    "failures:label_cluster": "label_cluster",
}
ALONE = {
    "trajectories:choose_columns": "what a person sees of the list",
    "trajectories:people": "names to be completed while one types",
    "failures:correction": "a form while one fills it in; labelling says the same of what does not fit",
}
"""Pages of which the API has none, and why."""
OF_OTHERS = (
    "import",
    "map",
    "discard",
    "quarantin",
    "replay",
    "dismiss",
    "reread",
    "retention",
    "connect",
    "redaction",
)
"""What arrives is another room's business."""
PAGES = [
    page.name
    for page in PAGE_LIST
    if page.room in ("trajectories", "failures") and not any(word in page.name for word in OF_OTHERS)
] + [page.name for page in PAGE_LIST if page.name == "promotions:lineage" or re.search("suite|turn|draft", page.name)]


def test_what_a_page_does_the_api_does() -> None:
    operations = {each["operationId"] for path in api.get_openapi_schema()["paths"].values() for each in path.values()}
    unknown = {page: sorted(set(names.split()) - operations) for page, names in SAME.items()}
    assert {page: names for page, names in unknown.items() if names} == {}


def test_no_two_bodies_have_one_name() -> None:
    """The document knows them by it, and would describe one endpoint with the fields of another."""

    api.get_openapi_schema()
    bodies = defaultdict(set)
    for each in _schemas():
        bodies[each.__name__].add(json.dumps(each.model_json_schema(), sort_keys=True))
    assert [name for name, described in bodies.items() if len(described) > 1] == []


def test_every_page_says_which_operation_it_is() -> None:
    assert set(SAME) | set(ALONE) == set(PAGES)
    assert not set(SAME) & set(ALONE)


SELF_EXPLANATORY = {"name", "description", "note", "reason", "text", "comment"}
"""Properties that a developer fills in without being told how."""


def test_the_document_describes_itself() -> None:
    """Each operation says what it does, and each property of a request's body what belongs there."""
    document = api.get_openapi_schema()
    operations = [each for path in document["paths"].values() for each in path.values()]
    assert [each["operationId"] for each in operations if not (each.get("summary") and each.get("description"))] == []
    bodies = {each["operationId"]: each["requestBody"] for each in operations if "requestBody" in each}
    known = document["components"]["schemas"]
    bare = {name: sorted(set(_undescribed(body, known))) for name, body in bodies.items()}
    assert {name: found for name, found in bare.items() if found} == {}


def test_the_docstring_of_a_field_is_its_description() -> None:
    """But for what is made without a class statement, whose fields bring their descriptions."""
    unread = [each for each in _schemas() if not each.model_config.get("use_attribute_docstrings")]
    assert [each.__name__ for each in unread if each.__module__ != schemas.__name__] == []


def _schemas() -> Iterator[type[ninja.Schema]]:
    """Every schema of ours, without what ninja makes of them."""
    waiting = list[type[ninja.Schema]](ninja.Schema.__subclasses__())
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        if not each.__module__.startswith(("ninja.", "abc")):
            yield each


def _undescribed(part: Any, known: dict[str, Any], seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The properties in this part of the document that need a description and have none."""
    if isinstance(part, list):
        for each in part:
            yield from _undescribed(each, known, seen)
    elif isinstance(part, dict):
        name = str(part.get("$ref", "")).rpartition("/")[2]
        if name and name not in seen:
            yield from _undescribed(known[name], known, seen | {name})
        properties = part.get("properties", {})
        for field, described in properties.items():
            if field not in SELF_EXPLANATORY and not described.get("description"):
                yield field
        for each in part.values():
            yield from _undescribed(each, known, seen)
