"""What exports are made of: files that stand alone, with nothing of the machine that made them."""

import ast
import json
import subprocess
import sys
import tomllib
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flywheel.core.envs import Task
from flywheel.core.interop import carried_code
from flywheel.core.interop.bundle import load
from flywheel.core.interop.environment_exports import FORMATS, CannotExport, Export, check_openings
from flywheel.core.traces import Message, ToolCall
from tests.interop.environments import COUNT, SOURCES, export_of, tasks_of

ALONE = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
assert not any(name.partition('.')[0] == 'flywheel' for name in sys.modules)
bundle = importlib.import_module(sys.argv[2] + '.interop.bundle').load(__import__('pathlib').Path(sys.argv[3]))
play = importlib.import_module(sys.argv[2] + '.interop.foreign_attempt')
envs = importlib.import_module(sys.argv[2] + '.envs')
scores = []
for task in bundle.tasks.values():
    messages = envs.episode(bundle.env, task, lambda seen: bundle.env.solve(task, seen))
    said = [message for message in messages if message.role == 'assistant']
    scores.append([play.judge(bundle.env, task, said).score, play.judge(bundle.env, task, said[:0]).score])
assert not any(name.partition('.')[0] in ('flywheel', 'django') for name in sys.modules), sorted(sys.modules)
print(json.dumps(scores))
"""


def written(export: Export, format: str, at: Path) -> Path:
    for path, content in FORMATS[format].files(export):
        target = at / path
        target.parent.mkdir(parents=True, exist_ok=True)
        assert not target.exists(), f"{path} is written twice"
        target.write_bytes(content)
    return at


@pytest.mark.parametrize("format", [*FORMATS])
def test_what_an_export_imports_of_ours_is_there(format: str, tmp_path: Path) -> None:
    folder = written(export_of("tool_call"), format, tmp_path)
    defined = {}
    for path in folder.rglob("*.py"):
        module = path.with_suffix("").relative_to(folder).as_posix().removesuffix("/__init__")
        tree = ast.parse(path.read_text())
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names |= {each.name for each in ast.walk(tree) if isinstance(each, ast.ClassDef | ast.FunctionDef)}
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names |= {alias.asname or alias.name for node in imported for alias in node.names}
        defined[module.replace("/", ".")] = names, imported
    checked = 0
    for module, (_, imported) in defined.items():
        for node in imported:
            ends = [name for name in defined if node.module and f".{name}".endswith(f".{node.module}")]
            for alias in node.names if ends else ():
                inside = [name for name in defined if name.endswith(f"{node.module}.{alias.name}")]
                assert inside or any(alias.name in defined[end][0] for end in ends), f"{module}: {alias.name}"
                checked += 1
    assert checked or format == "harbor"


@pytest.mark.parametrize("format", [*FORMATS])
@pytest.mark.parametrize("kind", SOURCES)
def test_every_file_is_whole_and_names_no_machine(kind: str, format: str, tmp_path: Path) -> None:
    folder = written(export_of(kind), format, tmp_path)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert str(Path(__file__).parents[2]) not in text
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(text)):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                assert not [name for name in names if name.partition(".")[0] in ("flywheel", "django")]
        elif path.suffix == ".toml":
            tomllib.loads(text)
        elif path.suffix == ".yaml":
            assert yaml.safe_load(text)
        elif path.suffix == ".json":
            json.loads(text)
        elif path.suffix == ".jsonl":
            assert len([json.loads(line) for line in text.splitlines()]) == COUNT


@pytest.mark.parametrize("kind", SOURCES)
def test_the_vendored_part_judges_without_flywheel(kind: str, tmp_path: Path) -> None:
    export = export_of(kind)
    folder = written(export, "verifiers", tmp_path) / export.package
    (folder / "__init__.py").write_text("")  # the framework itself is not here
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(tmp_path), f"{export.package}.core", str(folder)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for right, nothing in json.loads(done.stdout):
        assert right == 1.0
        assert nothing < 0.5


def test_the_bundle_comes_back_as_it_went(tmp_path: Path) -> None:
    export = export_of("workplace", splits=("train", "held_out"))
    bundle = load(written(export, "openenv", tmp_path))
    given = list(export.tasks())
    assert [(bundle.splits[task.id], task) for task in bundle.tasks.values()] == given
    assert [task.id for task in bundle.of("held_out")] == [task.id for split, task in given if split == "held_out"]
    assert bundle.about["verifier_digest"] == export.verifier_digest


@pytest.mark.parametrize("kind", SOURCES)
def test_what_an_agent_can_read_holds_no_answer(kind: str, tmp_path: Path) -> None:
    """NeMo Gym's rows go to whoever trains, Harbor's image to the agent."""
    export = export_of(kind)
    for path, content in FORMATS["nemo_gym"].files(export):
        if path.startswith("data/"):
            assert not [row for row in map(json.loads, content.splitlines()) if "target" in json.dumps(row)]
    images = [
        json.loads(content)
        for path, content in FORMATS["harbor"].files(export)
        if path.endswith("environment/flywheel_env/task.json")
    ]
    assert [image["target"] for image in images] == [{}] * COUNT


def test_harbors_agent_cannot_read_how_it_is_judged() -> None:
    export = export_of("workplace")
    part = {"type": "exact", "name": "own", "weight": 1.0, "read": "answer", "value": "swordfish"}
    judged = Export(**{**vars(export), "verifier": {"kind": "rubric", "parts": [part]}})
    holding = {path for path, content in FORMATS["harbor"].files(judged) if b"swordfish" in content}
    assert holding
    assert not [path for path in holding if "/environment/" in f"/{path}"]


NONE = "is no act, and whoever writes there what is none has score 0"
DEEP = '{"call": "search", "arguments": ' + '{"a":' * 50_000


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(
    ("transcript", "why"),
    [
        ("garbage", f"line 1 of the transcript {NONE}"),
        ('{"say": "Hello"}\n{"call": "x"}', f"line 2 of the transcript {NONE}"),
        ('{"call": "search", "arguments": 5}', NONE),
        ('{"call": 5, "arguments": {}}', NONE),
        ('{"say": {}}', NONE),
        ("[]", NONE),
        ("", ""),
        ("\n", NONE),
        ("\0\udcff", NONE),
        (DEEP, NONE),
        ('{"call": "search", "arguments": {"q": NaN}}', NONE),
        ('{"call": "search", "arguments": {"q": 1e999}}', ""),
        ('{"call": "search", "arguments": "{"}', ""),
        ('{"call": "\\ud800", "arguments": {"\\udfff": "\\ud800"}}', ""),
        ('{"say": "\\ud800\\u0000"}', ""),
        ('{"call": "mail_send", "arguments": {"to": {}, "text": [[]], "x": 1e308}}', ""),
    ],
    ids=map(str, range(16)),
)
def test_harbors_agent_cannot_spoil_the_transcript_to_have_no_score(
    kind: str, transcript: str, why: str, tmp_path: Path
) -> None:
    """It has a shell, and an attempt without a score would leave the mean."""
    at = tmp_path / "transcript.jsonl"
    at.write_bytes(transcript.encode(errors="surrogateescape"))
    assert why in scored_by_harbor(kind, at, tmp_path)
    assert json.loads((tmp_path / "logs/reward.json").read_text())["reward"] < 0.5


def test_a_transcript_that_is_no_file_scores_0(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "the transcript is no file" in scored_by_harbor("tool_call", tmp_path / "folder", tmp_path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    assert "the transcript is no file of at most" in scored_by_harbor("tool_call", tmp_path / "large", tmp_path)


def scored_by_harbor(kind: str, transcript: Path, at: Path) -> str:
    """What the tests of the first exported task say."""
    task = sorted(written(export_of(kind, tasks_of(kind)[:1]), "harbor", at / uuid.uuid4().hex).iterdir())[0]
    surroundings = {
        "PYTHONPATH": str(task / "environment"),
        "FLYWHEEL_TRANSCRIPT": str(transcript),
        "FLYWHEEL_VERIFIER_LOGS": str(at / "logs"),
    }
    command = [sys.executable, str(task / "tests/score.py")]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exports_say_which_task_it_is_and_what_never_happened() -> None:
    made = [replace(task, synthetic=number == 1) for number, task in enumerate(tasks_of("tool_call"))]
    export = export_of("tool_call", made, ("train", "held_out"))
    files = dict(FORMATS["nemo_gym"].files(export))
    rows = [json.loads(line)["verifier_metadata"] for line in files["data/held_out.jsonl"].splitlines()]
    assert rows == [{"environment": "tool-call@2", "task": "t-1", "split": "held_out", "slice": "", "synthetic": True}]
    told = [
        tomllib.loads(content.decode())["metadata"]
        for path, content in FORMATS["harbor"].files(export)
        if path.endswith("task.toml")
    ]
    assert [(row["task"], row["split"], row["synthetic"]) for row in told] == [
        ("t-0", "train", False),
        ("t-1", "held_out", True),
        ("t-2", "train", False),
    ]


def test_a_description_may_hold_what_yaml_takes_for_a_sign() -> None:
    export = Export(**{**vars(export_of("workplace")), "description": "Mail: reply - @properly"})
    config = next(content for path, content in FORMATS["nemo_gym"].files(export) if path.endswith(".yaml"))
    assert "Mail: reply - @properly" in str(yaml.safe_load(config))


def test_the_same_export_is_the_same_bytes() -> None:
    for format in FORMATS.values():
        assert list(format.files(export_of("workplace"))) == list(format.files(export_of("workplace")))


def test_what_needs_more_than_pure_code_is_not_exported() -> None:
    export = export_of("workplace")
    part = {"type": "python", "name": "own", "weight": 1.0, "source": "def verify(trace, target):\n    return 1.0\n"}
    needy = Export(**{**vars(export), "verifier": {"kind": "rubric", "parts": [part]}})
    for format in FORMATS.values():
        with pytest.raises(CannotExport, match="Python in the sandbox, which no export can carry along"):
            list(format.files(needy))


def test_what_begins_in_a_run_goes_where_there_are_words_for_it() -> None:
    begun = [
        Message("user", "Mail Bako"),
        Message("assistant", "", (ToolCall("c1", "search", {"q": "Bako"}),)),
        Message("tool", "two of them", (), "c1", "search"),
    ]
    wanted = {"wanted": [{"type": "question", "text": "Which Bako?"}]}
    task = Task("t-1", "Mail Bako", wanted, {"messages": [message.to_json() for message in begun]})
    export = export_of("episode", [task])
    for format, each in FORMATS.items():
        if each.takes_runs:
            check_openings(export, format)
            continue
        with pytest.raises(CannotExport, match=f"t-1 begins in the middle of a recorded run, and {each.label} opens"):
            check_openings(export, format)
        check_openings(export_of("episode"), format)
    (row,) = [json.loads(line) for line in dict(FORMATS["nemo_gym"].files(export))["data/train.jsonl"].splitlines()]
    assert row["responses_create_params"]["input"] == [
        {"role": "user", "content": "Mail Bako"},
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q": "Bako"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "two of them"},
    ]


def test_the_requirements_are_those_of_the_modules() -> None:
    assert [name.partition(">")[0] for name in carried_code.requirements()] == [
        "google-re2",
        "jsonschema",
        "orjson",
        "referencing",
    ]
