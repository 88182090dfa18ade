"""What this machine offers, and that a call is refused when a layer is not to be had."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.system import env
from workers.sandbox import host, layers, seccomp
from workers.sandbox.outcome import Status
from workers.sandbox.report import report

ROOT = Path(__file__).resolve().parents[3]
STEPS = {
    "account": "take_account",
    "namespaces": "enter_namespaces",
    "limits": "limit",
    "landlock": "landlock",
    "seccomp": "filter_calls",
}


@pytest.fixture(autouse=True)
def _keeper_ends() -> Iterator[None]:
    """None of another test is met, and none is left."""
    host.close()
    yield
    host.close()


def spoil(monkeypatch: pytest.MonkeyPatch, layer: str) -> None:
    """Start keepers whose kernel does not have this layer."""
    boot = host._BOOT.replace(
        "from workers.sandbox import keeper;",
        "from workers.sandbox import keeper, layers; exec(sys.argv[3]);",
    )
    code = f"def missing(*_): raise OSError(38, 'Function not implemented')\nlayers.{STEPS[layer]} = missing"
    monkeypatch.setattr(host, "_BOOT", boot)
    plain = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **k: plain([*command, code], **k))
    host.close()


def test_every_layer_is_tried_and_says_what_it_stops() -> None:
    found = report()
    assert [layer.name for layer in found.layers] == list(layers.ALL)
    assert all(layer.stops and layer.found for layer in found.layers)
    assert all(layer.getting for layer in found.layers if layer.state == "missing")
    assert found.runs == all(layer.state != "missing" for layer in found.layers)


@pytest.mark.parametrize("layer", STEPS)
def test_a_call_is_refused_when_a_layer_is_missing(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, layer)
    outcome = host.run("def verify(): return 1.0")
    assert outcome.status is Status.REFUSED
    assert outcome.value is None
    assert outcome.reason.startswith(f"a layer is missing: {layer}: [Errno 38] Function not implemented.")
    assert outcome.reason.endswith(host.GETTING[layer])


@pytest.mark.skipif(os.geteuid() != 0, reason="the account's layer is root's")
def test_the_report_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "landlock")
    found = report()
    assert not found.runs
    assert found.seconds_a_call is None
    states = {layer.name: layer.state for layer in found.layers}
    assert states == dict.fromkeys(layers.ALL, "on") | {"landlock": "missing"}
    missing = next(layer for layer in found.layers if layer.name == "landlock")
    assert missing.found == "[Errno 38] Function not implemented."
    assert missing.getting == host.GETTING["landlock"]


def test_only_namespaces_can_be_given_up_and_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "namespaces")
    assert host.run("def verify(): return 1.0").status is Status.REFUSED
    monkeypatch.setenv("FLYWHEEL_SANDBOX_WITHOUT", "namespaces")
    assert host.run("def verify(): return 1.0").value == 1.0
    assert next(layer for layer in report().layers if layer.name == "namespaces").state == "given up"
    monkeypatch.setenv("FLYWHEEL_SANDBOX_WITHOUT", "seccomp")
    with pytest.raises(env.BadSetting, match="FLYWHEEL_SANDBOX_WITHOUT='seccomp' cannot be used"):
        host.run("def verify(): return 1.0")


def test_a_keeper_that_does_not_start_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_BOOT", "raise RuntimeError('no keeper')")
    outcome = host.run("def verify(): return 1.0")
    assert outcome.status is Status.REFUSED
    assert "RuntimeError: no keeper" in outcome.reason


def test_the_report_is_a_command() -> None:
    command = [sys.executable, "-m", "workers.sandbox", "--report"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert all(f"{layer} " in done.stdout for layer in layers.ALL)
    assert json.loads(subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True).stdout)["layers"]


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter_is_a_program_whose_jumps_stay_inside(machine: str) -> None:
    code = seccomp.program(machine)
    lines = [code[at : at + 8] for at in range(0, len(code), 8)]
    assert lines[-1][0] == 0x06
    for number, line in enumerate(lines):
        if line[0] & 7 == 5:  # a jump
            assert number + 1 + max(line[2], line[3]) < len(lines)


def test_a_processor_without_a_table_has_no_filter() -> None:
    with pytest.raises(seccomp.UnknownMachine, match="'riscv64'"):
        seccomp.program("riscv64")
