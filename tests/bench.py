"""`make bench`: how fast, on what, beside what; a table and `bench.json`.

Every figure is a ratio to a reference measured in the same run on the same machine (in brackets), so that it can be
compared between machines. It runs on an embedded PostgreSQL of its own; seconds alone would say more of the machine
than of Flywheel.
"""

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOME = Path(tempfile.mkdtemp(prefix="flywheel-bench-"))
SIZES = (2_000, 20_000)


def main() -> None:
    os.environ |= {"FLYWHEEL_HOME": str(HOME), "DJANGO_SETTINGS_MODULE": "flywheel.settings"}
    for name in ("DATABASE_URL", "CELERY_BROKER_URL", "FLYWHEEL_HTTPS"):
        os.environ.pop(name, None)
    from flywheel import postgres

    rows = []
    try:
        cold = timed(lambda: postgres.start(HOME / "postgres"))
        postgres.stop(HOME / "postgres")
        warm = timed(lambda: postgres.start(HOME / "postgres"))
        rows.append(row("PostgreSQL, cold start", cold, "warm start", warm))
        server = postgres.running(HOME / "postgres")
        assert server is not None
        os.environ["DATABASE_URL"] = server.url
        rows += in_django()
    finally:
        postgres.stop(HOME / "postgres")
        shutil.rmtree(HOME, ignore_errors=True)
    report(rows)


def in_django() -> list[dict[str, Any]]:
    """What needs the project: ingest, lists, a long trajectory, jobs."""
    import django
    from django.conf import settings

    django.setup()
    settings.ALLOWED_HOSTS = ["testserver"]
    from django.core.management import call_command

    call_command("prepare", verbosity=0, stdout=open(os.devnull, "w"))  # noqa: SIM115 it lives as long as we do
    from django.test import Client

    from flywheel.accounts.models import ApiKey, Membership, Project, Role, User

    project = Project.objects.get(slug="default")
    admin = User.objects.get(username="admin")
    Membership.objects.get_or_create(user=admin, project=project, role=Role.ADMIN)
    _, text = ApiKey.make(project, "bench", ["ingest", "read"], admin)
    client = Client()
    client.force_login(admin)
    return [*ingest(client, text), *lists(client, project), *long_trajectory(client, project), *claims(project, admin)]


def ingest(client: Any, key: str) -> list[dict[str, Any]]:
    """OTLP requests of 100 spans, beside 100 plain rows in one INSERT."""
    from django.db import connection

    batches = iter([otlp(number) for number in range(40)])
    headers = {"authorization": f"Bearer {key}"}

    def send() -> None:
        answer = client.post("/v1/traces", next(batches), content_type="application/json", headers=headers)
        assert answer.status_code == 200, answer.content

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE bench_plain (id bigserial PRIMARY KEY, body jsonb)")
        body = [json.dumps({"attributes": "x" * 1200})] * 100

        def plain() -> None:
            cursor.execute("INSERT INTO bench_plain (body) SELECT unnest(%s::jsonb[])", [body])

        reference = median(plain, 30)
    return [row("OTLP request of 100 spans", median(send, 30), "INSERT of 100 rows of 1.2 kB", reference)]


def lists(client: Any, project: Any) -> list[dict[str, Any]]:
    """First page and a filtered page of the list, at growing sizes, beside the health check."""
    health = median(lambda: client.get("/healthz"), 50)
    found = []
    url = f"/p/{project.slug}/trajectories/"
    for size in SIZES:
        fill(project, size)
        for what, query in (("first page", ""), ("filtered page", "?q=bucket:wrong_tool outcome:failed")):
            seconds = median(lambda query=query: client.get(url + query), 20)  # type: ignore[misc]
            found.append(row(f"list of {size:,} trajectories, {what}", seconds, "GET /healthz", health))
    return found


def long_trajectory(client: Any, project: Any) -> list[dict[str, Any]]:
    """The page of a 35,000-step trajectory beside that of a short one."""
    from flywheel.trajectories.models import Step, Trajectory

    rows = list(Trajectory.objects.filter(project=project, session_id="bench")[:2])
    for trajectory, steps in zip(rows, (200, 35_000), strict=True):
        Step.objects.bulk_create(
            (
                Step(
                    project=project,
                    trajectory=trajectory,
                    trace_id=trajectory.trace_id,
                    span_id=f"s{n}",
                    position=n,
                    kind="user" if n % 2 else "assistant",
                    output=[{"role": "user" if n % 2 else "assistant", "content": f"message {n}"}],
                )
                for n in range(steps)
            ),
            batch_size=2000,
        )
        Trajectory.objects.filter(pk=trajectory.pk).update(step_count=steps)
    url = f"/p/{project.slug}/trajectories"
    short, long = (median(lambda t=t: client.get(f"{url}/{t.trace_id}/"), 10) for t in rows)  # type: ignore[misc]
    return [row("page of a 35,000-step trajectory", long, "page of a 200-step one", short)]


def claims(project: Any, admin: Any) -> list[dict[str, Any]]:
    """Submit and claim a job, beside one committed UPDATE."""
    import uuid

    from flywheel.evals.models import EvalRun
    from flywheel.jobs import Job
    from flywheel.trajectories.models import Trajectory
    from tests.conftest import Build, Cast

    Job.nudge = lambda _: None  # type: ignore[method-assign, assignment]
    people = dict.fromkeys(("viewer", "reviewer", "builder", "trainer", "approver", "admin", "stranger"), admin)
    build = Build(Cast(project=project, elsewhere=project, **people))
    version, task_set = build.version(), build.task_set(train=1, held_out=1)

    def claim() -> None:
        job, _ = EvalRun.submit(
            key=uuid.uuid4(), project=project, created_by=admin, version=version, task_set=task_set, verifier_digest="x"
        )
        assert EvalRun.claim(job.pk)

    one = Trajectory.objects.filter(project=project).first()
    assert one is not None
    update = median(lambda: Trajectory.objects.filter(pk=one.pk).update(tags=["x"]), 50)
    return [row("submit and claim a job", median(claim, 50), "one UPDATE", update)]


def otlp(batch: int) -> bytes:
    """20 traces of 5 spans as OTLP/JSON, about 1.2 kB a span."""
    spans = [
        {
            "traceId": f"{batch * 1000 + number // 5 + 1:032x}",
            "spanId": f"{batch * 1000 + number + 1:016x}",
            "name": "chat",
            "startTimeUnixNano": str(1_760_000_000_000_000_000 + number),
            "endTimeUnixNano": str(1_760_000_001_000_000_000 + number),
            "attributes": [
                {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "12"}},
                {"key": "gen_ai.output.messages", "value": {"stringValue": json.dumps(MESSAGE)}},
            ],
        }
        for number in range(100)
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


MESSAGE = [{"role": "assistant", "parts": [{"type": "text", "content": "x" * 1000}]}]


def fill(project: Any, size: int) -> None:
    """Trajectories without steps, up to `size` of them, then fresh statistics for the planner."""
    import uuid
    from datetime import UTC, datetime, timedelta

    from django.db import connection

    from flywheel.trajectories.models import Trajectory

    there = Trajectory.objects.filter(project=project).count()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    Trajectory.objects.bulk_create(
        (
            Trajectory(
                project=project,
                trace_id=uuid.uuid4().hex,
                session_id="bench",
                title=f"request {n}",
                started_at=start + timedelta(seconds=n),
                latency_ms=n % 900,
                outcome="failed" if n % 3 else "success",
                proposed_bucket="wrong_tool" if n % 50 == 0 else "",
            )
            for n in range(there, size)
        ),
        batch_size=2000,
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(work: Callable[[], object], times: int) -> float:
    work()
    return statistics.median(timed(work) for _ in range(times))


def row(what: str, seconds: float, beside: str, reference: float) -> dict[str, Any]:
    return {
        "what": what,
        "ms": seconds * 1000,
        "beside": beside,
        "beside_ms": reference * 1000,
        "ratio": seconds / reference,
    }


def report(rows: list[dict[str, Any]]) -> None:
    width = max(len(item["what"]) for item in rows)
    for item in rows:
        beside = f"{item['beside']} ({item['beside_ms']:.2f} ms)"
        sys.stdout.write(f"{item['what']:<{width}}  {item['ms']:9.2f} ms  {item['ratio']:7.2f} × {beside}\n")
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    Path("bench.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
