"""The compose file is not run here; what it says is held against the settings, the supervisor and the modules."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from flywheel.server import supervisor
from flywheel.system import env

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def test_the_services_of_a_teams_server_are_there() -> None:
    assert {"postgres", "redis", "web", "worker", "beat", "weights"} <= {
        n for n, s in SERVICES.items() if "profiles" not in s
    }
    assert {n for n, s in SERVICES.items() if s.get("profiles") == ["gpu"]} == {"trainer", "vllm"}
    assert {n for n, s in SERVICES.items() if s.get("profiles") == ["grpc"]} == {"grpc"}


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_variable_is_one_that_flywheel_reads(name: str) -> None:
    assert set(OURS[name]["environment"]) <= set(env.VARIABLES)


@pytest.mark.parametrize("name", sorted(OURS))
def test_keys_and_the_hosts_that_may_have_them_are_passed_on_together(name: str) -> None:
    assert OURS[name]["env_file"] == [{"path": "keys.env", "required": False}]


@pytest.mark.parametrize("name", ["web", "worker", "beat", "weights"])
def test_commands_are_those_of_the_supervisor(name: str) -> None:
    ours = next(child.command for child in supervisor.children() if child.name == name)
    theirs = SERVICES[name]["command"]
    program = ours.index("-m") + 1
    assert theirs[theirs.index("-m") + 1] == ours[program]
    known = {"flywheel.wsgi", "python:flywheel.server.gunicorn_settings", "workers.celery"}
    assert known & set(ours) == known & set(theirs)


def test_grpc_is_started_as_the_supervisor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "grpc" not in {child.name for child in supervisor.children()}
    monkeypatch.setenv("FLYWHEEL_GRPC_PORT", "4317")
    ours = next(child.command for child in supervisor.children() if child.name == "grpc")
    assert SERVICES["grpc"]["command"][1:3] == ours[1:] == ["manage.py", "otlp_grpc"]


def test_the_image_is_served_as_the_supervisor_does() -> None:
    command = (ROOT / "Dockerfile").read_text().rpartition("CMD ")[2]
    assert json.loads(command) == SERVICES["web"]["command"]


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_command_names_a_module_that_exists(name: str) -> None:
    command = OURS[name]["command"]
    if "-m" in command:
        assert importlib.util.find_spec(command[command.index("-m") + 1])
    for word in command:
        if re.fullmatch(r"(flywheel|workers)\.\w+", word):
            assert importlib.util.find_spec(word)
    if command[1] == "manage.py":
        assert list(ROOT.glob(f"flywheel/*/management/commands/{command[2]}.py"))


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for name in re.findall(r"\$\{(\w*(?:PASSWORD|SECRET|KEY|TOKEN)\w*)", text):
        assert f"${{{name}:?" in text
        assert f"${{{name}:-" not in text


def test_every_dependency_waits_for_a_service_that_exists() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)


def test_the_dockerfile_installs_and_copies_what_the_commands_need() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for copied in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for path in shlex.split(copied):
            assert (ROOT / path).exists(), path
    assert "-e '.[train,qlora,redis,grpc]'" in text
    assert "USER flywheel" in text
