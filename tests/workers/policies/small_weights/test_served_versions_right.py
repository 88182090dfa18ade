"""Every answer bears the digest of the weights that gave it, while versions come and go.

48 calls here; so many with FLYWHEEL_TEST_CALLS=2000."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Version
from flywheel.agents.weights import served_weights
from flywheel.trajectories.ingest.gateway import routing
from tests.conftest import Build
from tests.serving.conftest import make_adapter
from tests.serving.right_weights import STRENGTH, Heard, Moves, calls_wanted, stream, telling
from tests.workers.policies.small_weights.conftest import TOKEN
from workers.policies.small_weights.weights_server import WeightsServer
from workers.reference.build import POLICY


@pytest.mark.django_db(transaction=True)
def test_each_answer_is_of_the_weights_whose_digest_it_bears(
    server: WeightsServer,
    build: Build,
    key: Callable[..., dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, weights = build.agent(), artifacts.store(POLICY, "model")
    adapters = [
        artifacts.store(make_adapter(tmp_path / str(seed), seed, strength=STRENGTH), "adapter") for seed in (1, 2, 3)
    ]
    bare = {"system_prompt": "", "tools": [], "endpoint": {"kind": "transformers", "device": "cpu"}}
    versions = [build.version(agent, weights=weights, adapter=adapter, **bare) for adapter in adapters]
    Agent.objects.filter(pk=agent.pk).update(live=versions[0])
    at = served_weights.Address(f"http://127.0.0.1:{server.port}", TOKEN)
    monkeypatch.setattr(served_weights, "address", lambda: at)
    monkeypatch.setattr(routing, "_known", type(routing._known)())
    monkeypatch.setattr(routing, "FRESH_S", 0.0)
    monkeypatch.setattr(routing, "TRUSTED_S", 0.2)

    def unload(version: Version) -> None:
        with server.versions._lock:
            if served := server.versions._served.get(served_weights.name_of(version)):
                server.versions._let_go(served)

    expected = telling(versions)
    heard = Heard()
    with Moves(heard, agent, versions, lambda _: "", unload) as moves:
        stream(heard, agent, key("gateway"), expected, calls_wanted(48))
    assert not moves.problem
    assert not heard.wrong, heard.wrong[:3]
    assert heard.answers == calls_wanted(48), heard.refused
    assert heard.by_arm["candidate"], moves.done
