"""`make bench`: how fast, on what, beside what; a table and `bench.json`. Ingest beside its peers: bench_ingest.py;
the pages of reviewers at growing sizes: bench_lists.py; trainers beside bare TRL: bench_training.py; the ages of tokens
in simulated schedules: bench_modes.py; forecasts beside short runs: bench_forecast.py.

Every figure is a ratio to a reference measured in the same run on the same machine (in brackets), so that it can be
compared between machines. It runs on an embedded PostgreSQL of its own; seconds alone would say more of the machine
than of Flywheel.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import (
    bench_evals,
    bench_forecast,
    bench_gateway,
    bench_ingest,
    bench_lists,
    bench_modes,
    bench_sandbox,
    bench_training,
)
from tests.benching.report import table

OTHERS = (
    "tests.bench_dynamic_sampling",
    "tests.bench_forecast",
    "tests.bench_harness",
    "tests.bench_modes",
    "tests.bench_native_form",
    "tests.bench_ppo",
    "tests.bench_ramps",
    "tests.gpu",
    "tests.simulate",
    "tests.tictactoe.table",
)
"""Measurements that take longer or need more, each a command of its own that says in its help what it takes."""
HOME = Path(tempfile.mkdtemp(prefix="flywheel-bench-"))


def main() -> None:
    os.environ |= {"FLYWHEEL_HOME": str(HOME), "DJANGO_SETTINGS_MODULE": "flywheel.settings"}
    for name in ("DATABASE_URL", "CELERY_BROKER_URL", "FLYWHEEL_HTTPS"):
        os.environ.pop(name, None)
    from flywheel.system import postgres

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
    rows += bench_training.rows(3)
    schedules, forecasts = bench_modes.simulated(10_000), bench_forecast.rows("reference sft", 2)
    report(rows, bench_ingest.measure(bench_ingest.Plan()), lists(), schedules, forecasts)


def in_django() -> list[dict[str, Any]]:
    """What needs the project: ingest, jobs, the gateway."""
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
    return [
        *ingest(client, text),
        *claims(project, admin),
        *bench_evals.rows(project, admin),
        *bench_gateway.rows(),
        *bench_sandbox.rows(),
    ]


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


def lists() -> dict[str, Any]:
    """In a process of its own, as in a home of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        to = Path(scratch) / "lists.json"
        subprocess.run([sys.executable, "-m", "tests.bench_lists", "--quiet", "--to", str(to)], check=True)
        found: dict[str, Any] = json.loads(to.read_text())
    return found


def claims(project: Any, admin: Any) -> list[dict[str, Any]]:
    """Submit and claim a job, beside one committed UPDATE."""
    import uuid

    from flywheel.accounts.actors import Actor
    from flywheel.edge.jobs import Job
    from flywheel.evals.models import EvalRun
    from flywheel.trajectories.models import Trajectory
    from tests.conftest import Build, Cast

    Job.nudge = lambda _: None  # type: ignore[method-assign, assignment]
    people = dict.fromkeys(("viewer", "reviewer", "builder", "trainer", "approver", "admin", "stranger"), admin)
    build = Build(Cast(project=project, elsewhere=project, **people))
    version, task_set = build.version(), build.task_set(train=1, held_out=1)

    def claim() -> None:
        job, _ = EvalRun.submit(
            key=uuid.uuid4(),
            project=project,
            actor=Actor(admin),
            version=version,
            task_set=task_set,
            verifier_digest="x",
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


def report(
    rows: list[dict[str, Any]],
    ingest: dict[str, Any],
    lists: dict[str, Any],
    schedules: dict[str, Any],
    forecasts: list[dict[str, Any]],
) -> None:
    told = [table([*rows, *ingest["rows"]]), *bench_ingest.sentences(ingest), bench_lists.report(lists)]
    told += [f"{schedules['runs']:,} schedules simulated, the oldest token by bound: {schedules['oldest']}"]
    told += map(bench_forecast.line, forecasts)
    told += ["Also measured, each by `python -m`: " + ", ".join(OTHERS), ""]
    sys.stdout.write("\n".join(told))
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    found = {"rows": rows, "ingest": ingest, "lists": lists, "schedules": schedules, "forecasts": forecasts}
    Path("bench.json").write_text(json.dumps({"machine": machine} | found, indent=1))


if __name__ == "__main__":
    main()
