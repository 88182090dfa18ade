"""The keeper of vLLM, with a program of the test's own in its place."""

import sys
from pathlib import Path
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.evals.models import ChosenBase
from flywheel.evals.serving import chosen_base
from flywheel.server.supervisor import Stop
from tests.conftest import Build
from tests.evals.fake import adapted
from workers.policies import vllm_keeper
from workers.programs import vllm_server

SERVING = "import time; time.sleep(60)"
ENDING = "print('no room for the cache'); raise SystemExit(3)"


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What each server does, one after the other; when there is none left, the keeper is asked to stop."""
    monkeypatch.setenv("FLYWHEEL_SERVE", "vllm")
    left: list[str] = []

    def command(*_: Any) -> list[str]:
        if not left:
            raise Stop
        return [sys.executable, "-c", left.pop(0)]

    monkeypatch.setattr(vllm_server, "command", command)
    monkeypatch.setattr(vllm_server, "reading", lambda *_: [])
    monkeypatch.setattr(vllm_server, "environment", lambda _: {})
    monkeypatch.setattr(vllm_server, "load_live", list)
    monkeypatch.setattr("flywheel.agents.artifacts.local", lambda _: tmp_path)
    monkeypatch.setattr(vllm_keeper, "LOOK_S", 0.01)
    monkeypatch.setattr(vllm_keeper, "PAUSE_S", 0.02)
    return left


@pytest.mark.django_db(transaction=True)
def test_it_serves_what_is_chosen_starts_anew_with_another_and_says_why_one_ended(
    build: Build, programs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, one, other = Actor(build.cast.admin), adapted(build, 1), adapted(build, 2, base=7)
    chosen_base.choose(version=one, actor=actor)
    seen: list[tuple[str, Any, str]] = []
    report = chosen_base.report

    def told(row: ChosenBase, state: str, **more: Any) -> None:
        report(row, state, **more)
        seen.append((state, more.get("failures"), str(row.version)))
        if state == "ready":
            chosen_base.choose(version=other, actor=actor)

    monkeypatch.setattr(chosen_base, "report", told)
    monkeypatch.setattr(vllm_server, "answers", lambda _: True)
    programs += [SERVING, ENDING, ENDING]
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
    assert "no room for the cache" in ChosenBase.objects.get().problem
