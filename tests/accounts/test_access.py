"""Every URL, page and API call: what it declares, and that it holds for the anonymous, the stranger, and each role.

A new URL joins the table below with its permission; a new kind of object in a URL joins `world`.
"""

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from ninja.operation import Operation

from flywheel.accounts.access import ANYONE, SCOPE_NEEDS, SIGNED_IN, Key
from flywheel.accounts.models import GRANTS, ApiKey, Membership, Permission, Role, Scope, User
from flywheel.api import api
from flywheel.evals.models import EvalRun
from flywheel.promotions.models import Candidate
from tests.conftest import Build, Cast
from tests.promotions.conftest import agent, candidate, evaluated
from tests.test_jobs import training_run

__all__ = ["agent", "candidate", "evaluated"]

PAGES = {
    ANYONE: "accounts:login accounts:logout healthz readyz",
    SIGNED_IN: "home accounts:profile",
    "key:ingest": "ingest:traces ingest:logs ingest:metrics",
    Permission.VIEW: """
        overview:index
        agents:index agents:agent agents:version
        trajectories:index trajectories:facets trajectories:detail trajectories:conversation trajectories:steps
        trajectories:step
        failures:index failures:bucket failures:queue failures:review failures:panel
        environments:index environments:environment environments:task environments:task_set environments:make
        evals:index evals:pair evals:run evals:live evals:matrix evals:compare evals:changed
        training:index training:recommendations training:datasets training:dataset training:dataset_rows training:run
        training:live
        promotions:index promotions:candidate
    """,
    Permission.REVIEW: "failures:label failures:undo failures:correction",
    Permission.BUILD: """
        agents:new agents:new_version trajectories:import
        environments:create environments:make_task environments:make_version environments:make_all environments:freeze
        environments:retire
        evals:new evals:cancel evals:resume
    """,
    Permission.TRAIN: "training:launch training:cancel training:resume promotions:propose",
    Permission.APPROVE: "promotions:approve promotions:reject promotions:roll_back promotions:first",
    Permission.ADMIN: """
        promotions:policy
        settings:index settings:add_member settings:set_roles settings:keys settings:make_key settings:revoke_key
        settings:audit
    """,
}
CALLS = {
    Scope.INGEST: "import_trajectories",
    Scope.READ: """
        list_agents get_agent list_versions get_version
        list_trajectories get_trajectory list_batches
        list_buckets list_failures get_labels
        list_environments get_environment list_tasks get_task list_task_sets get_task_set
        list_evals get_eval list_eval_results compare_evals
        list_recommendations list_datasets get_dataset list_dataset_rows
        list_runs get_run list_run_points list_run_events
        list_candidates get_candidate list_promotions
    """,
    Scope.REVIEW: "label_trajectory undo_label",
    Scope.BUILD: """
        create_agent create_version
        create_environment make_environment_version make_task make_all_tasks retire_task freeze_task_set
        create_eval cancel_eval resume_eval
    """,
    Scope.TRAIN: "recommend_fix build_dataset launch_run cancel_run resume_run propose_candidate",
    Scope.APPROVE: "approve_candidate reject_candidate roll_back",
    Scope.ADMIN: "list_members set_member_roles list_keys make_key revoke_key list_audit_entries",
}
GLOBAL = {("failures", "key")}
"""Words in a URL that name no project's object: a bucket is one of the core's."""


@dataclass(frozen=True)
class Page:
    name: str
    room: str
    route: str
    parameters: tuple[str, ...]
    permission: str | None

    def __str__(self) -> str:
        return self.name

    @property
    def is_of_a_project(self) -> bool:
        return "project" in self.parameters

    def url(self, **values: Any) -> str:
        return reverse(self.name, kwargs={name: values[name] for name in self.parameters})


def walk(resolver: URLResolver, route: str = "", spaces: tuple[str, ...] = ()) -> Iterator[Page]:
    for pattern in resolver.url_patterns:
        whole = route + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            yield Page(
                name=":".join([*spaces, pattern.name or whole]),
                room=spaces[0] if spaces else "",
                route=whole,
                parameters=tuple(re.findall(r"<(?:\w+:)?(\w+)>", whole)),
                permission=getattr(pattern.callback, "permission", None),
            )
        elif pattern.namespace != "api":
            yield from walk(pattern, whole, (*spaces, *([pattern.namespace] if pattern.namespace else [])))


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    operation: Operation

    def __str__(self) -> str:
        return str(self.operation.operation_id)

    @property
    def key(self) -> Key | None:
        keys = [auth for auth in self.operation.auth_callbacks if isinstance(auth, Key)]
        return keys[0] if len(keys) == len(self.operation.auth_callbacks) == 1 else None

    def url(self, values: dict[str, Any]) -> str:
        return "/api/v1" + re.sub(r"{(?:\w+:)?(\w+)}", lambda match: str(values[match[1]]), self.path)


PAGE_LIST = sorted(walk(get_resolver()), key=str)
PROJECT_PAGES = [page for page in PAGE_LIST if page.is_of_a_project]
CALL_LIST = sorted(
    (
        Call(method, f"{prefix}{path}", operation)
        for prefix, router in api._routers
        for path, view in router.path_operations.items()
        for operation in view.operations
        for method in operation.methods
    ),
    key=str,
)
PLACEHOLDERS: dict[str, Any] = dict.fromkeys(["pk", "number", "version", "candidate", "baseline"], 1)


def nonsense(page: Page, project: str) -> str:
    """The page's address with objects that need not exist: who may pass is decided before anything is looked up."""
    values = {name: PLACEHOLDERS.get(name, 1 if f"<int:{name}>" in page.route else "x") for name in page.parameters}
    return page.url(**{**values, "project": project})


def either(client: Client, url: str, **more: Any) -> Any:
    """GET, or POST where there is no GET."""
    answer = client.get(url, **more)
    return client.post(url, **more) if answer.status_code == 405 else answer


# What each declares


def test_every_page_declares_its_permission_and_the_table_knows_it() -> None:
    expected = {name: permission for permission, names in PAGES.items() for name in names.split()}
    assert {page.name: page.permission for page in PAGE_LIST} == expected


def test_every_api_call_wants_a_key_with_the_scope_of_the_table() -> None:
    expected = {name: scope for scope, names in CALLS.items() for name in names.split()}
    assert {str(call): call.key.scope if call.key else None for call in CALL_LIST} == expected


def test_nothing_of_a_project_is_open_to_everybody() -> None:
    assert {page.permission for page in PROJECT_PAGES} <= set(Permission)


# Who is kept out


@pytest.mark.django_db
@pytest.mark.parametrize("page", PROJECT_PAGES, ids=str)
def test_a_page_keeps_out_who_may_not(
    page: Page, cast: Cast, client: Client, sign_in: Callable[[User], Client]
) -> None:
    url = nonsense(page, cast.project.slug)
    answer = either(client, url)
    assert (answer.status_code, answer.headers["Location"].startswith("/account/login/")) == (302, True)
    assert either(sign_in(cast.stranger), url).status_code == 404
    assert either(sign_in(cast.stranger), nonsense(page, "no-such-project")).status_code == 404
    for role in Role:
        answer = either(sign_in(getattr(cast, role)), url) if page.permission not in GRANTS[role] else None
        if answer is not None:
            assert answer.status_code == 403, role
            assert b"These roles may: " in answer.content


@pytest.mark.django_db
@pytest.mark.parametrize("page", [page for page in PAGE_LIST if page.permission == SIGNED_IN], ids=str)
def test_an_account_page_wants_a_login(page: Page, client: Client) -> None:
    assert client.get(page.url()).headers["Location"].startswith("/account/login/")


@pytest.mark.django_db
@pytest.mark.parametrize("call", CALL_LIST, ids=str)
def test_a_call_keeps_out_who_may_not(
    call: Call, cast: Cast, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    url = call.url({name: PLACEHOLDERS.get(name, 1) for name in re.findall(r"(\w+)}", call.path)})
    assert call.key is not None

    def ask(headers: dict[str, str] | None = None) -> int:
        return int(client.generic(call.method, url, "{}", "application/json", headers=headers).status_code)

    assert ask() == 401
    assert ask({"authorization": "Bearer fw_000000000000_x"}) == 401
    others = [scope for scope in Scope if scope != call.key.scope]
    assert ask(key(*others)) == 403, "every other scope is not enough"
    needed = SCOPE_NEEDS[call.key.scope]
    for role in [role for role in Role if needed not in GRANTS[role]]:
        assert ask(key(call.key.scope, by=getattr(cast, role))) == 403, f"a key of a {role}"
    headers = key(call.key.scope, by=cast.approver if needed == Permission.APPROVE else cast.admin)
    ApiKey.objects.update(revoked_at="2026-01-01T00:00Z")
    assert ask(headers) == 401, "revoked"


# Objects of another project


@dataclass(frozen=True)
class World:
    """One object of every kind that a URL can name, all of the project acme."""

    everyone: User
    """Has every role in acme."""
    values: dict[tuple[str, str], Any]

    def of(self, page: Page) -> dict[str, Any]:
        missing = [name for name in page.parameters if name != "project" and (page.room, name) not in self.values]
        assert not missing, f"teach `world` what {missing} means in {page.route}"
        return {name: self.values[page.room, name] for name in page.parameters if name != "project"}


@pytest.fixture
def world(cast: Cast, build: Build, candidate: Candidate) -> World:
    everyone = User.objects.create_user(username="everyone")
    for role in Role:
        Membership.objects.create(user=everyone, project=cast.project, role=role)
    trajectory = build.trajectory(proposed_bucket="wrong_tool", proposed_score=0.9)
    run = candidate.version_eval
    task = run.task_set.members.filter(split="held-out").first() or run.task_set.members.first()
    assert task is not None
    training = training_run(build)
    api_key, _ = ApiKey.make(cast.project, "test", ["read"], cast.admin)
    EvalRun.submit(
        key=uuid.uuid4(),
        project=cast.project,
        created_by=cast.builder,
        version=run.version,
        task_set=run.task_set,
        verifier_digest=run.verifier_digest,
    )
    values: dict[tuple[str, str], Any] = {
        ("agents", "name"): candidate.agent.name,
        ("agents", "number"): candidate.version.number,
        ("trajectories", "trace_id"): trajectory.trace_id,
        ("failures", "trace_id"): trajectory.trace_id,
        ("failures", "key"): "wrong_tool",
        ("environments", "trace_id"): trajectory.trace_id,
        ("environments", "name"): run.task_set.name,
        ("environments", "version"): run.task_set.version,
        ("environments", "number"): task.task.number,
        ("evals", "pk"): run.pk,
        ("evals", "candidate"): run.pk,
        ("evals", "baseline"): candidate.baseline_eval_id,
        ("evals", "number"): task.task.number,
        ("training", "pk"): training.pk,
        ("training", "name"): training.dataset.name,
        ("training", "version"): training.dataset.version,
        ("promotions", "pk"): candidate.pk,
        ("promotions", "agent"): candidate.agent.name,
        ("promotions", "number"): candidate.version.number,
        ("settings", "pk"): api_key.pk,
        ("keys", "public"): api_key.public,
        ("members", "username"): cast.reviewer.username,
    }
    return World(everyone, values)


@pytest.mark.django_db
def test_objects_of_another_project_are_not_found(world: World, cast: Cast, sign_in: Callable[[User], Client]) -> None:
    """The stranger has every role in a project of their own; nothing of ours can be reached through it."""
    stranger = sign_in(cast.stranger)
    found = {}
    for page in PROJECT_PAGES:
        values = world.of(page)
        if values and not all((page.room, name) in GLOBAL for name in values):
            answer = either(stranger, page.url(project=cast.elsewhere.slug, **values))
            if answer.status_code != 404:
                found[page.name] = answer.status_code
    assert found == {}


def rooms_of(path: str) -> str:
    """Which room's words a path of the API uses."""
    first = path.strip("/").partition("/")[0]
    rooms = {
        "task-sets": "environments",
        "datasets": "training",
        "training-runs": "training",
        "candidates": "promotions",
    }
    return rooms.get(first, first)


@pytest.mark.django_db
def test_calls_cannot_name_objects_of_another_project(
    world: World, cast: Cast, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    headers = key(*Scope, by=cast.stranger, project=cast.elsewhere)
    aliases = {"eval_id": "pk", "run_id": "pk"}
    found = {}
    for call in CALL_LIST:
        names = re.findall(r"(\w+)}", call.path)
        if not names:
            continue
        room = rooms_of(call.path)
        values = {name: world.values.get((room, aliases.get(name, name)), "x") for name in names}
        answer = client.generic(call.method, call.url(values), "{}", "application/json", headers=headers)
        if answer.status_code not in (404, 422):  # 422: the body is looked at before the object
            found[str(call)] = answer.status_code
    assert found == {}


# GET changes nothing


def picture() -> dict[str, str]:
    """What every table holds, but for what is no state: sessions, a key's last use, kept calculations."""
    apart = {"django_session", "accounts_apikey", "evals_comparison"}
    tables = {model._meta.db_table for model in apps.get_models()} - apart
    with connection.cursor() as cursor:
        found = {}
        for table in sorted(tables):
            cursor.execute(f"SELECT md5(coalesce(string_agg(t::text, '' ORDER BY t::text), '')) FROM {table} t")
            found[table] = cursor.fetchone()[0]
    return found


@pytest.mark.django_db
def test_get_changes_nothing_and_every_page_answers(
    world: World, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    """Whoever may do everything opens every page."""
    client = sign_in(world.everyone)
    client.raise_request_exception = False
    before = picture()
    wrong: dict[str, Any] = {}
    for page in PROJECT_PAGES:
        answer = client.get(page.url(project=cast.project.slug, **world.of(page)))
        if answer.status_code not in (200, 204, 286, 302, 404, 405):
            wrong[page.name] = answer.status_code
        if (after := picture()) != before:
            wrong[page.name] = [table for table in after if after[table] != before[table]]
            before = after
    assert wrong == {}


@pytest.mark.django_db
def test_a_get_call_changes_nothing(world: World, client: Client, key: Callable[..., dict[str, str]]) -> None:
    headers = key(*Scope, by=world.everyone)
    before = picture()
    for call in [call for call in CALL_LIST if call.method == "GET" and "{" not in call.path]:
        assert client.get(call.url({}), headers=headers).status_code == 200, str(call)
        assert picture() == before, str(call)
