"""The cast: one project, a person for each role, and a stranger who belongs to another project.

`cast.reviewer` and so on are users; `sign_in(user)` gives a test client; `key(scope, …)` gives headers of an API key.
Builders of rows (`build.…`) make the least that a test needs; everything else is a default.
"""

import fcntl
import itertools
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import DatabaseError, connection, transaction
from django.test import Client, TransactionTestCase
from pytest_django.plugin import DjangoDbBlocker

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey, Membership, Project, Role, Scope, User
from flywheel.agents.models import Agent, Version
from flywheel.core import digests, verifiers
from flywheel.core.traces import tooling
from flywheel.environments.models import (
    Environment,
    EnvironmentVersion,
    RewardRecipe,
    Split,
    Task,
    TaskSet,
    TaskSetMember,
)
from flywheel.evals.models import AuditOverride, EvalRun
from flywheel.evals.reward_audits.audit_lifecycle import override
from flywheel.evals.reward_audits.reward_standing import Judged
from flywheel.evals.runs.first_requests import live_request
from flywheel.failures.models import Proposal
from flywheel.trajectories.models import Source, Step, Trajectory
from flywheel.trajectories.search import full_text
from flywheel.trajectories.store.stored_traces import traces_of
from tests.plugin import HOME, TEMPLATE
from tests.worker import ROOT, broker_installed, start_worker, worker

__all__ = ["broker_installed", "start_worker", "worker"]

PBKDF2PasswordHasher.iterations = 1  # it is slow on purpose, for each password that a person is given or types
TOOLS = [
    {
        "name": "calendar.create_event",
        "description": "Put a meeting into the calendar.",
        "parameters": {
            "type": "object",
            "properties": {
                "person": {"type": "string", "x-entity": True, "x-refers": "people"},
                "day": {"type": "string", "enum": ["monday", "tuesday", "friday"]},
            },
            "required": ["person", "day"],
            "additionalProperties": False,
        },
    },
    {
        "name": "email.send",
        "description": "Send an email.",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"type": "string", "x-entity": True, "x-refers": "people"},
                "subject": {"type": "string"},
            },
            "required": ["to", "subject"],
            "additionalProperties": False,
        },
    },
    {
        "name": "calendar.delete_all",
        "description": "Delete every event.",
        "parameters": {"type": "object", "properties": {}},
        "x-unsafe": True,
    },
]
SYSTEM = "Answer with one tool call as JSON."


@dataclass(frozen=True)
class Cast:
    project: Project
    viewer: User
    reviewer: User
    builder: User
    trainer: User
    approver: User
    admin: User
    stranger: User
    elsewhere: Project


FEW_ROWS = 500
"""Of a table that is emptied row by row."""


@cache
def _tables() -> list[str]:
    """Name the tables that tests fill; what migrations made is kept, and flush would make it again."""
    kept = {"django_content_type", "auth_permission"}
    return sorted(set(connection.introspection.django_table_names(only_existing=True, include_views=False)) - kept)


@cache
def _guarded_tables() -> set[str]:
    """Name those with triggers of ours, which refuse changes or count rows."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT relname FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid WHERE NOT tgisinternal"
        )
        return {name for (name,) in cursor.fetchall()}


def _empty_what_holds_rows(_: object) -> None:
    """Take a transactional test's rows away. Django's flush truncates a hundred tables and asks every app for its
    permissions again, which took a third of a second for each of hundreds of tests. Few tables hold anything, and most
    of them little, which is deleted: with a table all those must be truncated that refer to it.
    """
    quote = connection.ops.quote_name
    connection.ensure_connection()
    count = "SELECT '{}', (SELECT count(*) FROM (SELECT FROM {} LIMIT {}) few)"
    looks = " UNION ALL ".join(count.format(table, quote(table), FEW_ROWS + 1) for table in _tables())
    with psycopg.Cursor(connection.connection) as cursor:
        rows = dict(cursor.execute(looks, prepare=True).fetchall())  # planned once in a process
    filled = [table for table, number in rows.items() if number]
    if not filled:
        return
    steps = []
    for table in filled:
        name, is_guarded = quote(table), table in _guarded_tables()
        steps += [f"ALTER TABLE {name} DISABLE TRIGGER USER"] * is_guarded
        steps += [f"DELETE FROM {name}"]
        steps += [f"ALTER TABLE {name} ENABLE TRIGGER USER"] * is_guarded
    with connection.cursor() as cursor:
        if max(rows.values()) <= FEW_ROWS:
            with suppress(DatabaseError), transaction.atomic():  # of a server that a test has left running, say
                cursor.execute("; ".join(steps))
                return
        cursor.execute(f"TRUNCATE {', '.join(map(quote, filled))} CASCADE")


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """Let the database of each of several processes begin as a copy of one that the first of them migrates."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    connection.settings_dict["TEST"]["TEMPLATE"] = TEMPLATE
    with open(HOME / "template", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock.fileno()).st_size:  # it is migrated
            return
        url = urlsplit(os.environ["DATABASE_URL"])
        with psycopg.connect(url.geturl(), autocommit=True) as session:
            session.execute(f"DROP DATABASE IF EXISTS {TEMPLATE}")
            session.execute(f"CREATE DATABASE {TEMPLATE}")
        environment = os.environ | {"DATABASE_URL": urlunsplit(url._replace(path=f"/{TEMPLATE}"))}
        subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=ROOT, env=environment, check=True)
        lock.write("migrated")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """End what is left of the sessions of processes that tests have killed: a statement goes on without its client."""
    TransactionTestCase._fixture_teardown = _empty_what_holds_rows  # type: ignore[attr-defined]
    yield
    with django_db_blocker.unblock():
        connection.close()  # a test may have killed the session of this one too
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"  # only the superuser may end an autovacuum that is at work
            )


@pytest.fixture
def cast(db: None) -> Cast:
    return cast_of_two_projects()


def cast_of_two_projects(prefix: str = "") -> Cast:
    project = Project.objects.create(slug="acme", name="Acme")
    elsewhere = Project.objects.create(slug="elsewhere", name="Elsewhere")
    people: dict[str, User] = {}
    for role in Role:
        people[role] = User.objects.create_user(username=f"{prefix}{role.value}", password=None)
        Membership.objects.create(user=people[role], project=project, role=role)
    people["stranger"] = User.objects.create_user(username=f"{prefix}stranger")
    for role in Role:
        Membership.objects.create(user=people["stranger"], project=elsewhere, role=role)
    return Cast(project=project, elsewhere=elsewhere, **people)


@pytest.fixture
def sign_in() -> Callable[[User], Client]:
    def go(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return go


@pytest.fixture
def key(cast: Cast) -> Callable[..., dict[str, str]]:
    """`key("read", "review", by=cast.reviewer)` → headers for `client.get(url, headers=…)`."""

    def make(*scopes: str, by: User | None = None, project: Project | None = None) -> dict[str, str]:
        maker = by or cast.admin
        _, text = ApiKey.make(project or cast.project, "test", [Scope(s).value for s in scopes], maker)
        return {"authorization": f"Bearer {text}"}

    return make


def asked_as_live(run: EvalRun) -> None:
    """Note on an eval that no worker carries out what its version would have been asked first. It is not saved."""
    member = run.task_set.members.select_related("task").order_by("task__number").first()
    assert member is not None
    run.first_request = {**live_request(run, member.task), "task": member.task_id}


class Build:
    """Builders of rows. Every argument has a default that makes sense."""

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.numbers = itertools.count(1)

    def agent(self, name: str = "assistant") -> Agent:
        return Agent.objects.get_or_create(project=self.cast.project, name=name)[0]

    def version(self, agent: Agent | None = None, **fields: Any) -> Version:
        defaults: dict[str, Any] = {
            "base_model": "tiny",
            "endpoint": {"kind": "transformers"},
            "system_prompt": SYSTEM,
            "tools": TOOLS,
            "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 64},
            "note": f"made for test {next(self.numbers)}",
        }
        return Version.make(agent or self.agent(), self.cast.admin, **{**defaults, **fields})

    def searchable(self, *rows: Trajectory) -> None:
        """As if detectors had read them."""
        full_text.index(traces_of(rows))

    def trajectory(
        self,
        prompt: str = "Meet Bako on friday",
        answer: str | None = None,
        project: Project | None = None,
        **fields: Any,
    ) -> Trajectory:
        """A stored single-turn trajectory: system, user, assistant."""
        number = next(self.numbers)
        if answer is None:
            answer = tooling.call_text("calendar.create_event", {"person": "Bako", "day": "friday"})
        start = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(minutes=number)
        trace_id = uuid.uuid4().hex
        project = project or self.cast.project
        defaults: dict[str, Any] = {
            "source": Source.PRODUCTION,
            "session_id": f"session-{number}",
            "title": prompt,
            "started_at": start,
            "ended_at": start + timedelta(seconds=1),
            "latency_ms": 1000.0,
            "step_count": 3,
            "tools": TOOLS,
        }
        row = Trajectory.objects.create(project=project, trace_id=trace_id, **{**defaults, **fields})
        for position, (kind, text) in enumerate([("system", SYSTEM), ("user", prompt), ("assistant", answer)]):
            Step.objects.create(
                trajectory=row,
                span_id=f"s{position}",
                position=position,
                kind=kind,
                started_at=start,
                ended_at=start + timedelta(milliseconds=300),
                body={"output": [{"role": kind, "content": text}]},
            )
        return row

    def environment(self, name: str = "mail", agent: Agent | None = None) -> Environment:
        environment, made = Environment.objects.get_or_create(
            project=self.cast.project, name=name, defaults={"kind": "tool_call", "agent": agent or self.agent()}
        )
        if made:
            verifier = {"kind": "tool_call"}
            config = {"tools": TOOLS}
            EnvironmentVersion.objects.create(
                environment=environment,
                number=1,
                config=config,
                verifier=verifier,
                digest=digests.digest({"config": config, "verifier": verifier}),
                verifier_digest=verifiers.digest(verifier),
                created_by=self.cast.builder,
            )
        return environment

    def task(self, split: str = Split.TRAIN, environment: Environment | None = None, **fields: Any) -> Task:
        number = next(self.numbers)
        environment = environment or self.environment()
        defaults: dict[str, Any] = {
            "number": number,
            "prompt": f"Meet Person{number} on friday",
            "state": {"people": [f"Person{number}"]},
            "target": {"tool": "calendar.create_event", "arguments": {"person": f"Person{number}", "day": "friday"}},
            "cluster": f"cluster-{split}-{number}",
            "split": split,
            "is_proved": True,
            "digest": digests.digest({"number": number, "environment": environment.pk}),
        }
        return Task.objects.create(
            project=self.cast.project, environment=environment, created_by=self.cast.builder, **{**defaults, **fields}
        )

    def task_set(
        self,
        train: int = 4,
        held_out: int = 8,
        name: str = "mail",
        environment: Environment | None = None,
        sealed: int = 0,
    ) -> TaskSet:
        environment = environment or self.environment()
        splits = [Split.TRAIN] * train + [Split.HELD_OUT] * held_out + [Split.SEALED] * sealed
        tasks = [self.task(split, environment) for split in splits]
        task_set = TaskSet.objects.create(
            project=self.cast.project,
            environment_version=environment.latest,
            name=name,
            version=next(self.numbers),
            digest=digests.digest([task.digest for task in tasks]),
            created_by=self.cast.builder,
        )
        TaskSetMember.objects.bulk_create(
            [TaskSetMember(task_set=task_set, task=task, split=task.split) for task in tasks]
        )
        return task_set

    def overridden(self, version: Version, task_set: TaskSet, recipe: RewardRecipe | None = None) -> AuditOverride:
        """Leave to train the version on what the set's verifier says, or a recipe upon it, without an audit."""
        return override(judged=Judged.now(version, task_set, recipe), actor=Actor(self.cast.approver), reason="a test")


def proposed(row: Trajectory, bucket: str, score: float = 0.9, own_score: float | None = None, **said: Any) -> Proposal:
    """What a detector has found in it; by its own rule it is as sure, unless said otherwise."""
    found = {"detector": "d", "evidence": "x", "own_score": score if own_score is None else own_score}
    return Proposal.objects.create(project=row.project, trajectory=row, bucket=bucket, score=score, **found | said)


@pytest.fixture
def build(cast: Cast) -> Build:
    return Build(cast)


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Wake-ups go nowhere unless a test starts a real worker (marker `worker`); the row is the truth anyway."""
    if "worker" not in request.keywords:
        monkeypatch.setattr("flywheel.edge.jobs.Job.nudge", lambda _: None)


@pytest.fixture(autouse=True)
def _no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread outlives a test that called the gateway; calls look at their splits themselves."""
    monkeypatch.setattr("flywheel.trajectories.ingest.gateway.routing.watched_splits.watch", lambda _: None)
