"""A server that answers with small weights, worse while the demo's switch is on."""

import json
import threading
from typing import Any

import pytest
import urllib3

from flywheel.agents.weights import served_weights
from flywheel.system import demo_switch
from tests.conftest import Build
from workers.programs.releases.harmable_server import HARMED, MODEL, HarmableServer

pytestmark = pytest.mark.django_db


class Weights:
    """What stands behind it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def request(self, method: str, url: str, *, json: Any, headers: dict[str, str]) -> Any:
        assert headers == {"Authorization": "Bearer token"}
        self.asked.append(json)
        return urllib3.HTTPResponse(b'{"choices": []}', status=200)


def test_it_asks_the_weights_and_hotter_while_the_switch_is_on(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    version, weights = build.version(), Weights()
    at = served_weights.Address("http://weights", "token")
    monkeypatch.setattr(served_weights, "server_of", lambda _: at)
    server = HarmableServer(0, version)
    monkeypatch.setattr(server, "http", weights)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()

    def ask(body: bytes) -> int:
        address = f"http://127.0.0.1:{server.server_address[1]}/v1/chat/completions"
        return int(urllib3.request("POST", address, body=body, retries=False).status)

    try:
        asked = json.dumps({"model": MODEL, "messages": [], "temperature": 0.2}).encode()
        assert ask(asked) == 200
        demo_switch.turn(on=True)
        assert ask(asked) == 200
        assert ask(b"{") == 400
    finally:
        demo_switch.turn(on=False)
        server.shutdown()
        thread.join()
        server.server_close()
    usual, harmed = weights.asked
    assert usual == {"model": served_weights.name_of(version), "messages": [], "temperature": 0.2, "stream": False}
    assert harmed == usual | HARMED
