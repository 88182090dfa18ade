"""How fast reviewers' pages are, as a project grows: lists, filters, text search, facets, trajectories, queues.

`make bench` runs it with the rest; alone: `python -m tests.bench_lists [2000 20000 200000] [--requests 30]
[--steps 35000] [--keep DIRECTORY] [--only list filter]`. It fills an embedded PostgreSQL of its own, answers pages
through the whole of Django (middleware, templates, session) in this process, and at the end once more over HTTP from
the server that `make up` starts. What exactly is measured stands in docs/design/lists.md.
"""

import argparse
import gc
import http.client
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

SIZES = (2_000, 20_000, 200_000)
PEERS_AT = "20,000 traces with 275,000 spans, 2 cores, SQLite, p95; measured for the requirements, not by this bench"
PEERS = {
    "list, first page": {"MLflow 3.17": "32 ms", "Phoenix 20": "2.4 s"},
    "text: a common word": {"MLflow 3.17": "over 30 s", "Phoenix 20": "1.7–2.6 s"},
    "a trajectory": {"MLflow 3.17": "70 ms", "Phoenix 20": "0.15–0.7 s"},
    "a long trajectory": {"MLflow 3.17": "not within 90 s", "Phoenix 20": "2.6 s for 1,000 of 35,000 spans"},
}
"""What a reader of the same kind of data waits for there."""
OVER_HTTP = ("list, first page", "filter: bucket", "text: a common word", "facets", "a trajectory")


@dataclass(frozen=True, slots=True)
class Plan:
    sizes: tuple[int, ...] = SIZES
    requests: int = 30
    long_steps: int = 35_000
    over_http: bool = True
    keep: Path | None = None
    """Where the database stays, to be measured again without being filled again."""
    only: tuple[str, ...] = ("",)
    """How the names of pages begin that are measured."""


def measure(plan: Plan) -> dict[str, Any]:
    """Fill and measure in a home of its own."""
    from tests.benching.installation import Installation

    scratch = plan.keep or Path(tempfile.mkdtemp(prefix="flywheel-bench-lists-"))
    scratch.mkdir(parents=True, exist_ok=True)
    installation = Installation(scratch)
    from flywheel.system import postgres

    os.environ |= {"FLYWHEEL_HOME": str(installation.home), "DJANGO_SETTINGS_MODULE": "flywheel.settings"}
    for name in ("DATABASE_URL", "CELERY_BROKER_URL", "FLYWHEEL_HTTPS"):
        os.environ.pop(name, None)
    try:
        os.environ["DATABASE_URL"] = postgres.start(installation.home / "postgres").url
        return _in_django(plan, installation)
    finally:
        installation.stop()
        if plan.keep is None:
            shutil.rmtree(scratch, ignore_errors=True)


def _in_django(plan: Plan, installation: Any) -> dict[str, Any]:
    import django
    from django.conf import settings

    django.setup()
    settings.ALLOWED_HOSTS = ["testserver"]
    from django.core.management import call_command

    call_command("prepare", verbosity=0, stdout=open(os.devnull, "w"))  # noqa: SIM115 it lives as long as we do
    from django.test import Client

    from flywheel.accounts.models import Membership, Project, Role, User
    from flywheel.server import gunicorn_settings
    from flywheel.trajectories.models import Trajectory
    from tests.benching.filling import LONG, Filler

    # As the server does before it answers: else Python would look through all that was loaded every few requests.
    gunicorn_settings.when_ready(None)
    gc.set_threshold(*gunicorn_settings.COLLECT_AFTER)
    project, admin = Project.objects.get(slug="default"), User.objects.get(username="admin")
    Membership.objects.get_or_create(user=admin, project=project, role=Role.ADMIN)
    User.objects.filter(pk=admin.pk).update(must_change_password=False)
    client = Client()
    client.force_login(admin)
    held = Trajectory.objects.filter(project=project).exclude(trace_id=LONG).count()
    filler = None if held else Filler(project, admin)
    found: dict[str, Any] = {"sizes": {}, "peers": PEERS, "peers_at": PEERS_AT}
    for size in (held,) if held else plan.sizes:
        began = time.monotonic()
        if filler is not None:
            filler.fill(size)
        filled = time.monotonic() - began
        prepared = prepare(project, admin, plan, has_grown=filler is not None)
        wanted = [page for page in pages(project, prepared) if (page.name or "list").startswith(plan.only)]
        found["sizes"][str(size)] = {"filled_s": filled} | answer(client, wanted, plan.requests)
    if plan.over_http:
        wanted = [page for page in wanted if page.name in OVER_HTTP]
        found["over_http"] = _over_http(installation, client.cookies["sessionid"].value, wanted, plan.requests)
    return found


def answer(client: Any, wanted: list[Any], requests: int) -> dict[str, Any]:
    """Answer each page so often, and see what is read from end to end."""
    from tests.benching import timing

    began = time.monotonic()
    with timing.listening() as watch:
        timings = [
            timing.measure(client, page, requests if page.limit_ms else requests // 3 + 1, watch) for page in wanted
        ]
    return {
        "measured_s": time.monotonic() - began,
        "pages": {one.name: one.to_json() for one in timings if one.name},
        "sequential": {table: sorted(names) for table, names in watch.sequential.items()},
    }


@dataclass(frozen=True, slots=True)
class Prepared:
    """What pages are about."""

    ids: list[str]
    """Of ordinary trajectories."""
    long: str
    long_steps: int
    queue: int
    candidate: Any
    """Whose lineage leads around the wheel."""
    ramp: Any


def prepare(project: Any, actor: Any, plan: Plan, *, has_grown: bool = True) -> Prepared:
    """A long trajectory, and a queue of all there are; then what the planner knows is brought up to date."""
    from flywheel.accounts.actors import Actor
    from flywheel.failures.models import Queue
    from flywheel.failures.queues import intake, queue_definitions
    from flywheel.failures.queues.queue_definitions import Wanted
    from flywheel.trajectories.models import Trajectory
    from tests.benching import chains, filling

    rows = Trajectory.objects.filter(project=project)
    if not rows.filter(trace_id=filling.LONG).exists():
        filling.long_one(project, plan.long_steps)
    queue = Queue.objects.filter(project=project).first()
    queue = queue or queue_definitions.make(project=project, actor=Actor(actor), wanted=Wanted("all of them"))
    candidate = chains.chained(project, actor, min(chains.TASKS, rows.count() // 4))
    ramp = chains.ramped(candidate)
    if has_grown:
        intake.add(queue=queue, keys=rows.order_by("pk").values_list("pk", flat=True).iterator(), actor=Actor(actor))
        filling.analyse()
    ids = list(rows.exclude(trace_id=filling.LONG).order_by("?").values_list("trace_id", flat=True)[: plan.requests])
    return Prepared(ids, filling.LONG, plan.long_steps, queue.pk, candidate, ramp)


def pages(project: Any, prepared: Prepared) -> list[Any]:
    from flywheel.trajectories.models import Trajectory
    from tests.benching import pages as known

    rows, slug = Trajectory.objects.filter(project=project), project.slug
    return [
        *known.of_list(slug, known.moment()),
        *known.of_search(slug, rows, random.Random(3)),
        *known.of_trajectory(slug, prepared.ids, prepared.long, prepared.long_steps),
        *known.of_review(slug, prepared.queue),
        *known.of_lineage(slug, prepared.candidate, prepared.ramp),
        *known.of_others(slug),
    ]


def _over_http(installation: Any, session: str, wanted: list[Any], requests: int) -> dict[str, dict[str, float]]:
    """The chief pages from the real server, with its workers beside it: seen from the client, over one connection."""
    installation.start()
    connection = http.client.HTTPConnection("127.0.0.1", installation.port, timeout=60)
    found = {}
    for page in wanted:
        took = []
        for address in islice(page.addresses, requests + 2):
            began = time.perf_counter()
            connection.request("GET", address.replace(" ", "%20"), headers={"Cookie": f"sessionid={session}"})
            answer = connection.getresponse()
            answer.read()
            took.append((time.perf_counter() - began) * 1000)
            assert answer.status == 200, f"{address}: {answer.status}"
        took = sorted(took[2:])
        found[page.name] = {"p50": statistics.median(took), "p95": took[int(0.95 * len(took))]}
    return found


# What is said of it


def unplanned(found: dict[str, Any]) -> list[str]:
    """Pages that read the steps from end to end at the largest size: none may."""
    largest = list(found["sizes"].values())[-1]
    return list(largest["sequential"].get("trajectories_step", ()))


def report(found: dict[str, Any]) -> str:
    sizes = list(found["sizes"])
    names = list(found["sizes"][sizes[-1]]["pages"])
    width = max(map(len, names))
    head = "".join(f"{int(size):>17,}" for size in sizes)
    lines = [f"{'p50 / p95 in ms, trajectories:':<{width}}{head}   growth  wanted   CPU web + db  statements"]
    for name in names:
        each = [found["sizes"][size]["pages"][name] for size in sizes]
        last = each[-1]
        figures = "".join(f"{one['p50']:>8.1f} /{one['p95']:>7.1f}" for one in each)
        wanted = f"{last['limit']:>6.0f}{' ' if last['p95'] <= last['limit'] else '!'}" if last["limit"] else " " * 7
        cost = f"{last['web_cpu']:7.1f} + {last['db_cpu']:5.1f}"
        lines.append(
            f"{name:<{width}}{figures} {last['p95'] / each[0]['p95']:7.2f}× {wanted}{cost} {last['statements']:9.1f}"
        )
    for size in sizes:
        one = found["sizes"][size]
        lines.append(f"{int(size):,}: filled in {one['filled_s']:.0f} s, measured in {one['measured_s']:.0f} s")
    last = found["sizes"][sizes[-1]]
    for table, pages in sorted(last["sequential"].items()):
        lines.append(f"read from end to end: {table} by {', '.join(pages)}")
    for name, one in found.get("over_http", {}).items():
        lines.append(f"over HTTP, {name}: p50 {one['p50']:.1f}, p95 {one['p95']:.1f} ms")
    for name, peers in found["peers"].items():
        lines.append(f"others, {name}: " + ", ".join(f"{peer} {took}" for peer, took in peers.items()))
    lines.append(f"(others: {found['peers_at']})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--steps", type=int, default=35_000, help="of the long trajectory")
    parser.add_argument("--no-http", action="store_true")
    parser.add_argument("--keep", type=Path, help="a directory: its database stays, and is filled only once")
    parser.add_argument("--only", nargs="+", default=[""], help="pages whose names begin so: list filter text facets")
    parser.add_argument("--quiet", action="store_true", help="only write the file")
    parser.add_argument("--to", type=Path, default=Path("bench-lists.json"))
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    found = measure(
        Plan(tuple(asked.sizes), asked.requests, asked.steps, not asked.no_http, asked.keep, tuple(asked.only))
    )
    found["machine"] = {"python": platform.python_version(), "cores": os.cpu_count(), "load_before": load}
    asked.to.write_text(json.dumps(found, indent=1))
    if not asked.quiet:
        sys.stdout.write(report(found) + "\n")
    if pages := unplanned(found):
        sys.exit(f"the steps are read from end to end by {', '.join(pages)}")


if __name__ == "__main__":
    main()
