"""The web's side of the sandbox: `manage.py run_verifier`, the page, the API, and where their rows come from."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.environments import sandbox_machines
from flywheel.environments.models import SandboxReport
from tests.conftest import Cast
from tests.pages import page_of
from tests.waiting import wait_for
from workers.sandbox.outcome import Status

SignIn = Callable[..., Client]
TRACE = {"steps": [{"kind": "assistant", "output": [{"role": "assistant", "content": "vier ist 4 ✓"}]}]}
VERIFIER = """
def verify(trace, target):
    said = trace["steps"][-1]["output"][-1]["content"]
    return {"score": float(target["answer"] in said), "reason": said, "parts": {"found": 1}}
"""


def layer(name: str, state: str = "on", found: str = "tried", getting: str = "") -> dict[str, str]:
    return {"name": name, "state": state, "stops": f"what {name} stops", "found": found, "getting": getting}


def report(*layers: dict[str, str], runs: bool = True) -> dict[str, Any]:
    return {"layers": list(layers), "runs": runs, "machine": "Linux 6", "seconds_a_call": 0.03 if runs else None}


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    def write(code: str, trace: Any = TRACE, target: Any = None) -> list[str]:
        (tmp_path / "verifier.py").write_text(code)
        (tmp_path / "trace.json").write_text(json.dumps(trace))
        (tmp_path / "target.json").write_text(json.dumps(target))
        names = ["verifier.py", "--trace", "trace.json", "--target", "target.json"]
        return [name if name.startswith("--") else str(tmp_path / name) for name in names]

    return write


def verdict(arguments: list[str]) -> dict[str, Any]:
    found = printed(arguments)
    if found["status"] == Status.REFUSED:
        pytest.skip(found["reason"])
    return found


def printed(arguments: list[str]) -> dict[str, Any]:
    out = StringIO()
    call_command("run_verifier", *arguments, stdout=out)
    lines = out.getvalue().splitlines()
    assert len(lines) == 1
    return dict(json.loads(lines[0]))


def test_run_verifier_prints_one_line_with_the_verdict(files: Callable[..., list[str]]) -> None:
    found = verdict(files(VERIFIER, target={"answer": "4"}))
    assert (found["status"], found["score"], found["reason"]) == ("ok", 1.0, "vier ist 4 ✓")
    assert found["parts"] == {"found": 1.0}
    assert verdict(files(VERIFIER, target={"answer": "5"}))["score"] == 0.0


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("def verify(trace, target): return 1 / 0", "raised"),
        ("def verify(trace, target): return 'yes'", "nan"),
        ("def verify(trace, target): return 7", "range"),
        ("def verify(trace, target): return None", "unscored"),
        ("def verify(trace, target): return open('/etc/passwd').read()", "raised"),
        ("def verify(trace, target): return bytearray(10 ** 10)", "memory"),
        ("def verify(trace, target):\n    while True: pass", "timeout"),
        ("def verify(trace, target):\n    print('x' * 10 ** 6)\n    return 1.0", "output"),
        ("def verify(trace, target): return {'score': 1.0, 'reason': 'x' * 10 ** 6}", "output"),
        ("import os\ndef verify(trace, target): os._exit(0)", "crashed"),
    ],
)
def test_run_verifier_says_why_there_is_no_score(code: str, status: str, files: Callable[..., list[str]]) -> None:
    found = verdict(files(code))
    assert (found["status"], found["score"]) == (status, None)
    assert found["reason"]


@pytest.mark.parametrize("layer", ["landlock", "seccomp"])
def test_run_verifier_refuses_where_a_layer_is_missing(
    layer: str, files: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import pytest, runpy; from tests.workers.sandbox.test_report import spoil; "
        f"spoil(pytest.MonkeyPatch(), {layer!r}); runpy.run_module('workers.sandbox', run_name='__main__')"
    )
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda _, **how: run([sys.executable, "-c", code, "score"], **how))
    found = printed(files(VERIFIER, target={"answer": "4"}))
    assert (found["status"], found["score"], found["parts"]) == ("refused", None, {})
    assert found["reason"].startswith(f"a layer is missing: {layer}")


def test_run_verifier_takes_another_range(files: Callable[..., list[str]]) -> None:
    arguments = [*files("def verify(trace, target): return -1"), "--low", "-1", "--high", "1"]
    assert verdict(arguments)["score"] == -1.0


@pytest.mark.parametrize(("low", "high"), [("2", "1"), ("1", "1"), ("nan", "1"), ("0", "inf")])
def test_run_verifier_refuses_a_range_that_is_none(low: str, high: str, files: Callable[..., list[str]]) -> None:
    with pytest.raises(CommandError, match=f"--low {low} --high {high}: expected a range"):
        call_command("run_verifier", *files(VERIFIER), "--low", low, "--high", high)


def test_run_verifier_starts_no_database(files: Callable[..., list[str]], tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    command = [
        sys.executable,
        str(settings.BASE_DIR / "manage.py"),
        "run_verifier",
        *files(VERIFIER, target={"answer": "4"}),
    ]
    home = tmp_path / "home"
    done = subprocess.run(
        command, env={**given, "FLYWHEEL_HOME": str(home)}, capture_output=True, check=True, timeout=120
    )
    assert json.loads(done.stdout)["score"] == 1.0
    assert not (home / "postgres").exists()


def test_run_verifier_says_what_it_cannot_read(files: Callable[..., list[str]], tmp_path: Path) -> None:
    arguments = files(VERIFIER)
    (tmp_path / "trace.json").write_text("{")
    with pytest.raises(CommandError, match=r"trace\.json: it is no JSON"):
        call_command("run_verifier", *arguments)
    (tmp_path / "verifier.py").write_bytes(b"\xff\xff")
    with pytest.raises(CommandError, match=r"verifier\.py: it must be UTF-8"):
        call_command("run_verifier", *arguments)
    with pytest.raises(CommandError, match=r"none\.py: No such file"):
        call_command("run_verifier", str(tmp_path / "none.py"), "--trace", arguments[2])


def test_the_page_shows_each_machine_and_how_to_get_what_it_lacks(cast: Cast, sign_in: SignIn) -> None:
    sandbox_machines.keep("good", report(layer("account", "not needed"), layer("landlock")))
    sandbox_machines.keep(
        "poor", report(layer("landlock", "missing", "no such call <b>", "Boot with landlock."), runs=False)
    )
    sandbox_machines.keep("open", report(layer("namespaces", "given up")))
    page = sign_in(cast.builder).get(reverse("environments:sandbox", args=[cast.project.slug]))
    text = page_of(page)
    assert text.count("<h2>") == 4
    assert "Untrusted code runs here" in text
    assert "Untrusted code is refused here.</b> Missing: landlock." in text
    assert "no such call &lt;b&gt;" in text
    assert "Boot with landlock." in text
    assert "runs without namespaces" in text
    assert "No recent report" not in text
    SandboxReport.objects.filter(host="good").update(at=timezone.now() - timedelta(hours=4))
    assert "No recent report" in page_of(sign_in(cast.admin).get(page.request["PATH_INFO"]))


def test_the_page_without_a_report_says_how_to_make_one(cast: Cast, sign_in: SignIn) -> None:
    page = sign_in(cast.builder).get(reverse("environments:sandbox", args=[cast.project.slug]))
    assert "workers.sandbox --report" in page_of(page)


def test_the_newest_word_of_a_machine_counts(db: None) -> None:
    sandbox_machines.keep("one", report(layer("landlock", "missing"), runs=False))
    sandbox_machines.keep("one", report(layer("landlock")))
    assert [(row.host, row.report["runs"]) for row in SandboxReport.objects.all()] == [("one", True)]


def test_the_api_lists_the_machines(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    sandbox_machines.keep("one", report(layer("landlock")))
    answer = client.get("/api/v1/sandbox", headers=key("build", by=cast.builder)).json()
    assert [(row["host"], row["runs"], row["layers"][0]["state"]) for row in answer["items"]] == [("one", True, "on")]
    assert client.get("/api/v1/sandbox", headers=key("read")).status_code == 403


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_worker_reports_when_it_starts(worker: object) -> None:
    wait_for(SandboxReport.objects.exists, "it reports")
    found = SandboxReport.objects.get()
    assert {layer["name"] for layer in found.report["layers"]} >= {"namespaces", "limits", "landlock", "seccomp"}
