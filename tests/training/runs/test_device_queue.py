"""Devices by label: what fits runs side by side, what does not waits with its reason and is not overtaken."""

import re
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.models import WorkerDevice
from flywheel.core import recipes
from flywheel.edge import job_queue
from flywheel.edge.jobs import Lease, State
from flywheel.system import devices
from flywheel.training.launch import device_choice
from flywheel.training.models import TrainingRun
from flywheel.training.runs import device_queue
from tests.conftest import Build, Cast
from tests.edge.test_jobs import training_run
from tests.pages import page_of
from workers.tasks import report_devices

pytestmark = pytest.mark.django_db
HOST = socket.gethostname()


@pytest.fixture
def queued(build: Build, settings: Any) -> Callable[..., TrainingRun]:
    """A run that waits for devices: `queued("cuda", processes=2)`. Who has claimed it keeps it, however slow we are."""
    settings.JOB_LEASE_SECONDS = 3600

    def make(device: str, **settings: Any) -> TrainingRun:
        run = training_run(build, **settings)
        TrainingRun.objects.filter(pk=run.pk).update(device=device)
        run.refresh_from_db()
        return run

    return make


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """This worker has three GPUs, named as its own CUDA_VISIBLE_DEVICES does."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setenv("FLYWHEEL_DEVICES", "cuda:3")


def taken(run: TrainingRun) -> list[str] | None:
    """The devices that a claim gives it; None where it waits."""
    lease = TrainingRun.claim(run.pk)
    run.refresh_from_db()
    assert (lease is not None) == (run.state == State.RUNNING)
    return run.held["names"] if lease else None


def names(lease: Lease) -> list[str]:
    assert isinstance(lease.job, TrainingRun)
    return list(lease.job.held["names"])


def place(run: TrainingRun) -> int:
    found = device_queue.waiting(run)
    assert found is not None
    return found.place


def test_runs_that_fit_run_side_by_side_each_on_devices_of_its_own(gpus: None, queued: Any) -> None:
    wide, narrow, third = queued("cuda", processes=2), queued("cuda"), queued("cuda")
    assert (taken(wide), taken(narrow), taken(third)) == (["4", "5"], ["6"], None)
    assert third.message == f"it waits for 1 of the 3 GPUs of {HOST}; none free"
    TrainingRun.objects.filter(pk=narrow.pk).update(state=State.SUCCEEDED)
    assert taken(third) == ["6"]


def test_a_wide_run_that_waits_is_not_overtaken(gpus: None, queued: Any) -> None:
    first, wide, later = queued("cuda"), queued("cuda", processes=3), queued("cuda")
    assert taken(first) == ["4"]
    assert taken(wide) is None
    assert wide.message == f"it waits for 3 of the 3 GPUs of {HOST}; 2 free"
    assert taken(later) is None
    assert later.message == f"it waits behind an earlier run for 1 of the 3 GPUs of {HOST}"
    assert [place(run) for run in (wide, later)] == [1, 2]
    TrainingRun.objects.filter(pk=first.pk).update(state=State.SUCCEEDED)
    lease = job_queue.claim_next()
    assert lease is not None
    assert (lease.job, names(lease)) == (wide, ["4", "5", "6"])


def test_a_run_that_never_fits_here_holds_nobody_up(gpus: None, queued: Any) -> None:
    too_wide, later = queued("cuda", processes=4), queued("cuda")
    assert (taken(too_wide), taken(later)) == (None, ["4"])
    assert too_wide.message == f"it waits for a worker with 4 GPUs; {HOST} has 3"


def test_a_worker_takes_only_what_it_has_devices_for(queued: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cpu = queued("cuda"), queued("cpu", processes=4)
    monkeypatch.setenv("FLYWHEEL_DEVICES", "cpu:1")
    assert taken(gpu) is None
    assert gpu.message == ""
    lease = job_queue.claim_next()
    assert lease is not None
    assert (lease.job, names(lease)) == (cpu, ["0"])
    assert job_queue.claim_next() is None
    monkeypatch.setenv("FLYWHEEL_DEVICES", "cpu:0")
    assert taken(queued("")) is None


def test_a_silent_owner_frees_its_devices_and_its_run_goes_on_where_there_is_room(gpus: None, queued: Any) -> None:
    silent, other = queued("cuda", processes=3), queued("cuda", processes=3)
    assert taken(silent) is not None
    TrainingRun.objects.filter(pk=silent.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    assert taken(other) is None, "the earlier run goes first"
    TrainingRun.objects.filter(pk=silent.pk).update(device="cpu")  # as if its devices had become another machine's
    assert taken(other) == ["4", "5", "6"]
    TrainingRun.objects.filter(pk=silent.pk).update(device="cuda")
    assert taken(silent) is None
    assert (silent.state, silent.lease_until) == (State.QUEUED, None)


@pytest.mark.django_db(transaction=True)
def test_two_workers_never_take_the_same_device(gpus: None, queued: Any) -> None:
    runs = [queued("cuda") for _ in range(5)]
    begin, leases = threading.Barrier(5), list[Lease | None]()

    def take(pk: int) -> None:
        begin.wait()
        leases.append(TrainingRun.claim(pk))
        connection.close()

    threads = [threading.Thread(target=take, args=[run.pk]) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken_names = [name for lease in leases if lease for name in names(lease)]
    assert len(taken_names) == len(set(taken_names))


def test_what_a_worker_offers_is_told_or_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(metadata, "version", lambda _: "2.13.0+cpu")
    assert devices.offered() == {"cpu": ["0"]}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1a, GPU-2b")
    assert devices.offered() == {"cuda": ["GPU-1a", "GPU-2b"]}
    monkeypatch.setenv("FLYWHEEL_SERVE_GPUS", "GPU-1a,GPU-2b")
    assert devices.offered() == {"cuda": ["GPU-1a", "GPU-2b"]}, "they are nobody's without FLYWHEEL_SERVE"
    monkeypatch.setenv("FLYWHEEL_SERVE", "vllm")
    assert devices.offered() == {"cpu": ["0"]}
    with monkeypatch.context() as asked:
        asked.setenv("FLYWHEEL_DEVICES", "cuda:2")
        assert devices.offered() == {}
    monkeypatch.setenv("FLYWHEEL_SERVE_GPUS", "GPU-1a")
    assert devices.offered() == {"cuda": ["GPU-2b"]}
    monkeypatch.delenv("FLYWHEEL_SERVE")
    monkeypatch.setenv("FLYWHEEL_DEVICES", "cpu:2,cuda:1")
    assert devices.offered() == {"cuda": ["GPU-1a"], "cpu": ["0", "1"]}


def test_only_a_worker_that_can_tune_so_takes_a_run_which_holds_no_other_up(
    queued: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLYWHEEL_DEVICES", "cpu:1")
    there = [False]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: there[0] or None)
    monkeypatch.setattr(recipes, "SERVE", tmp_path)
    report_devices()
    assert WorkerDevice.objects.get(label="cpu").modes == ["full", "lora"]
    four_bits, other, last = queued("cpu"), queued("cpu"), queued("cpu")
    TrainingRun.objects.filter(pk=four_bits.pk).update(tuning={"mode": "qlora", "rank": 4, "alpha": 8})
    colocated = TrainingRun.objects.filter(pk=last.pk)
    colocated.update(settings=last.settings | {"rollouts": "colocate"})
    last.refresh_from_db()
    assert taken(four_bits) is None
    assert taken(last) is None
    assert last.message == f"it waits for a worker with vLLM; {HOST} has none"
    assert four_bits.message == f"it waits for a worker with bitsandbytes; {HOST} has none"
    assert taken(other) == ["0"]
    there[0] = True
    (tmp_path / ".installed").touch()
    report_devices()
    assert WorkerDevice.objects.get(label="cpu").modes == ["full", "lora", "qlora", "colocate"]
    TrainingRun.objects.filter(pk=other.pk).update(state=State.SUCCEEDED)
    assert taken(last) is None, "now it waits behind the earlier one"
    assert taken(four_bits) == ["0"]


def test_a_run_takes_gpus_where_a_worker_that_lives_offers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_choice.device_label({}) == ""
    report_devices()
    WorkerDevice.objects.update(at=timezone.now() + timedelta(hours=1))
    assert device_choice.device_label({"device": "auto"}) == "cpu"
    WorkerDevice.objects.create(host="gpus", label="cuda", name="0", at=timezone.now() + timedelta(hours=1))
    assert (device_choice.device_label({}), device_choice.device_label({"device": "cpu"})) == ("cuda", "cpu")
    WorkerDevice.objects.filter(host="gpus").update(at=timezone.now() - WorkerDevice.ALIVE_FOR)
    assert device_choice.device_label({}) == "cpu"


def test_pages_say_who_holds_what_and_who_waits(
    gpus: None, queued: Any, sign_in: Callable[..., Client], cast: Cast
) -> None:
    report_devices()
    WorkerDevice.objects.update(at=timezone.now() + timedelta(hours=1))
    first, second, third = queued("cuda", processes=2), queued("cuda", processes=2), queued("cuda")
    for run in (first, second, third):
        TrainingRun.claim(run.pk)
    client = sign_in(cast.trainer)

    def text(name: str, *args: int) -> str:
        page = page_of(client.get(reverse(f"training:{name}", args=[cast.project.slug, *args])))
        return re.sub(r"<[^>]+>", "", page)

    assert "It is number 2 in the queue" in text("run", third.pk)
    assert f"cuda 4, 5 of {HOST}" in text("run", first.pk)
    assert f"cuda 4 of {HOST}: {first}" in text("index")
    assert f"cuda 6 of {HOST}: free" in text("index")
