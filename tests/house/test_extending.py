"""What the guide to extending says works: its examples are taken from the page, added, and used as anybody would."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.template import engines
from django.test import Client
from jinja2 import DictLoader

from flywheel.accounts.models import User
from flywheel.core import detectors, envs, recipes
from flywheel.core.detectors import DETECTORS, Detector, detect, run_detectors
from flywheel.core.recipes import training_algorithms
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import VerifierError, rubric_parts
from flywheel.core.verifiers.rubric import read
from flywheel.environments.pages.verifier_editor.verifier_forms import Draft
from flywheel.trajectories.search import list_columns
from tests.conftest import Build, Cast
from tests.core.envs.test_tool_call import TASK, TOOLS

SignIn = Callable[[User], Client]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/guides/extending.md").read_text()
SPAN = {
    "acme.kind": "llm",
    "acme.session": "s-1",
    "acme.tag.team": "blue",
    "acme.input": json.dumps({"messages": [{"role": "user", "content": "Hello"}]}),
    "acme.output": json.dumps({"role": "assistant", "content": "Good day"}),
}
READ = """
import json, sys
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces, span_meaning
span = Span("1" * 32, "2" * 16, attributes=json.loads(sys.argv[1]))
step, facts = otlp_traces.step_of(span), span_meaning.facts(span)
print(json.dumps([step.kind, step.input[0].content, step.output[0].content, facts.session_id, facts.metadata]))
"""


def example(path: str) -> str:
    """The page's example for this file, without the line that names it."""
    blocks = re.findall(rf"```python\n# {re.escape(path)}\n(.*?)```", PAGE, re.DOTALL)
    assert blocks, path
    return str(blocks[0])


def add(path: str, module: Any) -> None:
    """Run the page's example for this file as if it stood in the module."""
    exec(compile(example(path), path, "exec"), vars(module))


def row_of(path: str, module: Any) -> Any:
    """The row that is the page's example for this file."""
    return eval(example(path).strip(), vars(module))


def test_every_file_that_the_page_names_is_there() -> None:
    missing = [
        path for path in re.findall(r"(?:flywheel|workers|tests)/[\w/]+\.py", PAGE) if not (ROOT / path).exists()
    ]
    assert set(missing) == {"flywheel/trajectories/formats/dialects/acme.py"}


def test_a_verifier_part_is_checked_judges_and_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rubric_parts.PARTS, "brief", rubric_parts.PARTS["exact"])
    monkeypatch.setattr(rubric_parts, "_brief", None, raising=False)
    add("flywheel/core/verifiers/rubric_parts.py", rubric_parts)

    with pytest.raises(VerifierError, match="words: expected a number"):
        read({"kind": "rubric", "parts": [{"type": "brief"}]})
    env = envs.build("tool_call", {"tools": TOOLS}, {"kind": "rubric", "parts": [{"type": "brief", "words": 3}]})
    verdicts = [
        env.verifier(TASK)(Trace.from_messages("", [*env.reset(TASK, 0), Message("assistant", text)]), TASK.target)
        for text in ("three short words", "and here are more of them")
    ]
    assert [(verdict.score, verdict.reason) for verdict in verdicts] == [
        (1.0, "brief: 3 words"),
        (0.0, "brief: 6 words"),
    ]
    draft = Draft([])
    draft.change("add", "brief")
    assert draft.lines[0].values == {"words": "50"}


def test_a_detector_proposes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_detectors, "repeated_apology", None, raising=False)
    add("flywheel/core/detectors/run_detectors.py", run_detectors)
    row = row_of("flywheel/core/detectors/__init__.py", detectors)
    assert isinstance(row, Detector)
    monkeypatch.setitem(DETECTORS, row.name, row)

    said = [Message("user", "Go on."), Message("assistant", "I apologise.")] * 3
    proposals = detect(Trace.from_messages("a" * 32, said))
    assert [(each.bucket, each.score) for each in proposals if each.detector == "repeated_apology"] == [
        ("bad_planning", 0.6)
    ]


def test_an_algorithm_is_one_row() -> None:
    algorithm = row_of("flywheel/core/recipes/training_algorithms.py", training_algorithms)
    assert (algorithm.is_reinforced, algorithm.is_grouped) == (True, True)
    assert set(algorithm.own) <= set(recipes.SETTINGS)


def test_a_column_is_one_row_and_a_block_where_it_is_more_than_a_number(
    cast: Cast, build: Build, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = row_of("flywheel/trajectories/search/list_columns.py", list_columns)
    monkeypatch.setitem(list_columns.COLUMNS, column.key, column)
    row = build.trajectory(error_count=3)
    client = sign_in(cast.viewer)

    def cells() -> list[str]:
        page = client.get("/p/acme/trajectories/", {"cols": "request,errors"}).content.decode()
        assert '<th class="num">Errors</th>' in page
        return re.findall(r'<td class="num" data-label="Errors">(.*?)</td>', page)

    assert cells() == ["3"]
    (block,) = re.findall(r"```jinja\n(.*?)```", PAGE, re.DOTALL)
    name = "trajectories/cells.html"
    jinja: Any = engines["jinja2"]
    text = (ROOT / "templates/jinja" / name).read_text() + block
    with monkeypatch.context() as patch:
        patch.setattr(jinja, "env", jinja.env.overlay(loader=DictLoader({name: text})))
        assert cells() == [f'<a href="/p/acme/trajectories/{row.trace_id}/">3</a>']


def test_a_dialect_is_read(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "flywheel", tmp_path / "flywheel", ignore=shutil.ignore_patterns("__pycache__"))
    dialects = tmp_path / "flywheel/trajectories/formats/dialects"
    (dialects / "acme.py").write_text(example("flywheel/trajectories/formats/dialects/acme.py"))
    registry = dialects / "dialect_registry.py"
    text = registry.read_text().replace("formats.dialects import ", "formats.dialects import acme, ", 1)
    text, times = re.subn(r"^(DIALECTS: .*)\)$", r"\1, acme)", text, count=1, flags=re.MULTILINE)
    assert times == 1
    registry.write_text(text)

    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(SPAN)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["assistant", "Hello", "Good day", "s-1", {"team": "blue"}]
