"""A model's server in front of small weights, which a switch lets answer badly: the demo's candidate is asked there.

What it gives is what the weights say, drawn at a temperature at which they say little that is right. So the harm is
real, and nobody is told of it.
"""

import json
from typing import Any

import urllib3

from flywheel.agents.models import Version
from flywheel.agents.weights import served_weights
from flywheel.core.network.json_server import JsonHandler, JsonServer
from flywheel.system import demo_switch

HARMED: dict[str, Any] = {"temperature": 2.0}
MODEL = "front-desk"
"""The name under which it is asked."""
WAIT_S = 60.0


class HarmableServer(JsonServer):
    """Answers for one version, on this machine alone."""

    def __init__(self, port: int, version: Version) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.version = version
        self.http = urllib3.PoolManager(maxsize=8, retries=False, timeout=WAIT_S)


class Handler(JsonHandler):
    server: HarmableServer

    def do_POST(self) -> None:
        try:
            asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        except ValueError:
            self.close_connection = True
            self.send_json(400, _error("the body is not JSON"), {})
            return
        self.send_json(*self._answer(asked), {})

    def _answer(self, asked: dict[str, Any]) -> tuple[int, Any]:
        at = served_weights.server_of(self.server.version)
        if at is None:
            return 503, _error("the weights' server was not started")
        asked = {**asked, "model": served_weights.name_of(self.server.version), "stream": False}
        if demo_switch.is_on():
            asked |= HARMED
        headers = {"Authorization": f"Bearer {at.token}"}
        try:
            reply = self.server.http.request("POST", f"{at.url}/v1/chat/completions", json=asked, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            return 502, _error(f"the weights' server is away: {error}")
        return reply.status, reply.json()


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "param": None, "code": None}}
