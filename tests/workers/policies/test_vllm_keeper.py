"""The keeper of vLLM, with a program of the test's own in its place."""

import os
import sys
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.agents.models import ChosenBase
from flywheel.agents.weights import chosen_bases
from flywheel.server.supervisor import Stop
from tests.conftest import Build
from tests.evals.fake import adapted
from workers.policies import vllm_keeper

SERVING = "import time; print('vLLM is ready: base-1', flush=True); time.sleep(600)"
ENDING = "raise SystemExit('no room for the cache')"


@pytest.mark.django_db(transaction=True)
def test_it_serves_what_is_chosen_starts_anew_with_another_and_says_why_one_ended(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_SERVE", "vllm")
    monkeypatch.setattr(vllm_keeper, "LOOK_S", 0.01)
    monkeypatch.setattr(vllm_keeper, "PAUSE_S", 0.02)
    actor, one, other = Actor(build.cast.admin), adapted(build, 1), adapted(build, 2, base=7)
    chosen_bases.choose(version=one, actor=actor)
    made = vllm_keeper.command(ChosenBase.objects.get())
    assert made[-6:] == ["--version", str(one), "--project", "acme", "--port", "8100"]
    monkeypatch.setenv("FLYWHEEL_SERVE_GPUS", "4,5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert vllm_keeper.command(ChosenBase(version=one, place=1))[-2:] == ["--port", "8101"]
    programs = [SERVING, ENDING, ENDING]
    seen: list[tuple[str, Any, str]] = []
    report = chosen_bases.report

    def command(_: ChosenBase) -> list[str]:
        if not programs:
            raise Stop
        return [sys.executable, "-c", programs.pop(0)]

    def told(row: ChosenBase, state: str, **more: Any) -> None:
        report(row, state, **more)
        seen.append((state, more.get("failures"), str(row.version)))
        if state == "ready":
            chosen_bases.choose(version=other, actor=actor)

    monkeypatch.setattr(vllm_keeper, "command", command)
    monkeypatch.setattr(chosen_bases, "report", told)
    with pytest.raises(Stop):
        vllm_keeper.keep()
    assert seen[:2] == [("starting", None, str(one)), ("ready", 0, str(one))]
    assert seen[2:] == [
        ("starting", None, str(other)),
        ("down", 1, str(other)),
        ("starting", None, str(other)),
        ("down", 2, str(other)),
        ("starting", None, str(other)),
    ]
    assert ChosenBase.objects.get().problem == "no room for the cache"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4"
