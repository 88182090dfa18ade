"""What holds across the packages and no single test of a room would notice."""

import importlib
import inspect
import os
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings
from pytest_django import DjangoDbBlocker

from flywheel.edge import job_queue, jobs
from flywheel.system import broker
from tests.waiting import PATIENCE_S, wait_for
from tests.worker import database_url

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "tokenizers", "pandas", "pyarrow")
WEB_RSS_MAX_MB = 250


def in_fresh_process(code: str, **environment: str) -> str:
    """Run code in a process that has imported nothing yet; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_kind_of_job_has_a_handler_that_takes_a_lease() -> None:
    from workers import tasks

    assert set(tasks.HANDLERS) == {kind._meta.label for kind in job_queue.kinds()}
    for label in tasks.HANDLERS:
        assert len(inspect.signature(tasks.handler(label)).parameters) == 1


def test_every_task_that_is_sent_by_name_is_registered() -> None:
    from workers import tasks
    from workers.celery import app

    app.loader.import_default_modules()
    sent = {jobs.RUN_TASK, *(entry["task"] for entry in broker.celery_settings()["beat_schedule"].values())}
    sent |= {name for name in ("workers.detect",) if name in _sources("flywheel")}
    assert sent <= set(app.tasks)
    assert {task for task in app.tasks if task.startswith("workers.")} == sent, tasks.__file__


def test_every_kind_of_job_has_a_log() -> None:
    for kind in job_queue.kinds():
        log = next(field for field in kind._meta.related_objects if field.get_accessor_name() == "events")
        assert issubclass(log.related_model, jobs.JobEvent)


def test_the_web_process_imports_nothing_heavy() -> None:
    code = (
        "import sys, flywheel.wsgi, flywheel.urls\n"
        "from django.urls import get_resolver\n"
        "get_resolver().url_patterns\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    assert in_fresh_process(code).split() == []


def test_the_workers_start_without_anything_heavy() -> None:
    code = (
        "import sys\n"
        "from workers.celery import app\n"
        "app.loader.import_default_modules()\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    assert in_fresh_process(code).split() == []


@pytest.mark.parametrize("program", ["agent_demo", "demo", "environment_server", "turn", "vllm_server"])
def test_a_program_is_imported_before_django_is_set_up(program: str) -> None:
    in_fresh_process(f"import workers.programs.{program}", DJANGO_SETTINGS_MODULE="")


def test_trainers_are_told_of_every_part_of_flywheel_that_they_may_not_see() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [trainers] = [contract for contract in contracts if contract.get("source_modules") == ["workers.trainers"]]
    parts = {
        f"flywheel.{path.stem}"
        for path in (ROOT / "flywheel").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"flywheel.__init__", "flywheel.core"} <= set(trainers["forbidden_modules"])


def test_no_room_has_a_drawer_for_everything() -> None:
    drawers = {"services.py", "utils.py", "helpers.py", "signals.py", "selectors.py"}
    found = [path for package in ("flywheel", "workers") for path in (ROOT / package).rglob("*.py")]
    assert [path for path in found if path.name in drawers] == []


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.django_db(transaction=True)
def test_the_web_process_stays_small(django_db_blocker: DjangoDbBlocker) -> None:
    """gunicorn's worker after it has served pages, a login form among them."""
    port = 20_000 + os.getpid() % 20_000
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-b", f"127.0.0.1:{port}", "--threads", "4", "flywheel.wsgi"],
        cwd=ROOT,
        env={**os.environ, "FLYWHEEL_HOME": str(settings.HOME), "DATABASE_URL": database_url()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/account/login/"), "gunicorn answers")
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        assert children
        sizes = [_rss_mb(int(pid)) for pid in children]
        print("web process, MB:", sizes)
        assert max(sizes) < WEB_RSS_MAX_MB
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


def test_every_app_is_a_room_of_the_design() -> None:
    rooms = [config.name for config in apps.get_app_configs() if config.name.startswith("flywheel.")]
    assert rooms == [f"flywheel.{room}" for room in settings.ROOMS]
    for room in rooms:
        importlib.import_module(f"{room}.models")


def _rss_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


def _sources(package: str) -> str:
    return "\n".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
