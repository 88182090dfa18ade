"""Weights of a hub: fetched where the operator allows it, at one commit, and nothing that could run."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from flywheel.agents.models import Version
from tests.agents.test_artifacts import safetensors
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "model.safetensors": safetensors(),
    "config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "pytorch_model.bin": b"pickle",
    "modeling_own.py": b"import os",
    "onnx/config.json": b"{}",
}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download takes."""

    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        type(self).asked.append(path)
        if path in ("/api/models/own/tiny/revision/main", f"/api/models/own/tiny/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in FILES]
            return self.answer(json.dumps({"id": "own/tiny", "sha": COMMIT, "siblings": siblings}).encode())
        tree = f"/api/models/own/tiny/tree/{COMMIT}"
        if path == tree:
            rows = [{"type": "file", "path": name, "size": len(text), "oid": "0" * 40} for name, text in FILES.items()]
            return self.answer(json.dumps(rows).encode())
        name = path.removeprefix(f"/own/tiny/resolve/{COMMIT}/")
        if name in FILES:
            return self.answer(FILES[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})
        return self.answer(b"{}", {"X-Error-Code": "RepoNotFound"}, status=404)

    def answer(self, content: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        usual = {"Content-Length": str(len(content)), "Content-Type": "application/json"}
        for name, value in (usual | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_version_is_made_of_a_hubs_weights_at_a_commit(
    hub: str, build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.version()
    common = ["--project", "acme", "--agent", "assistant", "--by", cast.builder.username, "--like", "1"]
    with pytest.raises(CommandError, match="no hub is allowed here; the operator sets FLYWHEEL_HUB"):
        call_command("add_version", *common, "--hub", "own/tiny")
    monkeypatch.setenv("FLYWHEEL_HUB", hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    call_command("add_version", *common, "--hub", "own/tiny", stdout=StringIO())
    made = Version.objects.get(number=2)
    assert made.weights is not None
    assert set(made.weights.manifest) == {"model.safetensors", "config.json", "chat_template.jinja"}
    assert (made.base_model, made.note) == ("own/tiny", f"own/tiny at {COMMIT[:12]}")
    assert not [path for path in Hub.asked if path.endswith((".bin", ".py", "onnx/config.json"))]
    with pytest.raises(CommandError, match="own/other cannot be fetched from"):
        call_command("add_version", *common, "--hub", "own/other")
    with pytest.raises(CommandError, match="expected owner/name"):
        call_command("add_version", *common, "--hub", "https://x/y")
