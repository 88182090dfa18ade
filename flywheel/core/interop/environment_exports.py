"""Exports: an environment with its tasks as a package or folder that others' tools take as one of their own.

A format is a function from an `Export` to files, `(path, content)` pairs, made one by one, so that a thousand tasks are
never held as files. Nothing of the machine that exports is in them.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flywheel.core import envs
from flywheel.core.envs import Environment, Task, episode
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.envs.kinds import needs
from flywheel.core.errors import FieldError
from flywheel.core.interop import carried_code, gym_server
from flywheel.core.interop.bundle import ENVIRONMENT, TASKS
from flywheel.core.traces.openai_messages import outside

File = tuple[str, bytes]
TEMPLATES = Path(__file__).parent / "templates"
_HOLE = re.compile(r"__([A-Z]+(?:_[A-Z]+)*)__")


class CannotExport(FieldError):
    """This environment cannot be told in that format; the message says why and what to do."""


def uncarried(ref: str, kind: str, config: Mapping[str, Any], verifier: Mapping[str, Any]) -> str:
    """Name what plays or judges in an environment and no export can carry along; empty where it is pure code."""
    if not (needed := needs(kind, config, verifier)):
        return ""
    return (
        f"{ref} is judged by {' and '.join(_ELSEWHERE[each] for each in sorted(needed))}, which no export can carry "
        "along; serve it over NeMo Gym's protocol instead, so that it is judged here"
    )


_ELSEWHERE = {
    "judge": "an LLM judge",
    "python": "Python in the sandbox",
    "gym": "somebody else's server",
    "world": "Python in the sandbox",
    "server": "your own tool server",
    "simulator": "a model that stands in for tools",
}


@dataclass(frozen=True)
class Export:
    name: str
    version: int
    kind: str
    config: Mapping[str, Any]
    verifier: Mapping[str, Any]
    digest: str
    verifier_digest: str
    description: str
    tasks: Callable[[], Iterable[tuple[str, Task]]]
    """`(split, task)`, each time from the beginning."""
    splits: tuple[str, ...]
    """Those that its tasks are of."""
    agent: AgentConfig | None = None
    """Who is asked: its prompt opens the tasks, and its tools are offered, in whatever form others write calls."""

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def package(self) -> str:
        """Its name as a Python package."""
        return re.sub(r"\W", "_", f"flywheel_{self.name}")

    @property
    def distribution(self) -> str:
        return self.package.replace("_", "-")

    @cached_property
    def env(self) -> Environment:
        """Raises CannotExport for a verifier that needs more than pure code."""
        if problem := uncarried(self.ref, self.kind, self.config, self.verifier):
            raise CannotExport(problem)
        return envs.build(self.kind, self.config, self.verifier, agent=self.agent)

    def about(self) -> dict[str, Any]:
        names = ("name", "version", "kind", "config", "verifier", "digest", "verifier_digest", "description")
        agent = {"agent": self.agent.to_json()} if self.agent else {}
        return {name: getattr(self, name) for name in names} | agent | {"exported_by": "Flywheel"}


def _bundle(export: Export, folder: str = "") -> Iterator[File]:
    """Yield the files that every export carries: the environment, its tasks, and the code that judges them."""
    yield f"{folder}{ENVIRONMENT}", _json(export.about())
    yield f"{folder}{TASKS}", b"".join(_line({**task.to_json(), "split": split}) for split, task in export.tasks())


def _core(folder: str, *also: str) -> Iterator[File]:
    for path, content in carried_code.files((*carried_code.RUNTIME, *also)).items():
        yield f"{folder}core/{path}", content


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _line(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"


def _filled(export: Export, template: str, **more: str) -> bytes:
    """A template with its holes filled. Raises KeyError for a hole that nothing is known for."""
    known = {
        "NAME": export.ref,
        "PACKAGE": export.package,
        "IMPORT": f"{export.package}.core",
        "DISTRIBUTION": export.distribution,
        "VERSION": str(export.version),
        "VERIFIER": export.verifier_digest[:12],
        "TITLE": _title(export),
        "SPLIT": export.splits[0],
        "SPLITS": ", ".join(export.splits),
        **more,
    }
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    return _HOLE.sub(lambda match: known[match[1]], text).encode()


def _title(export: Export) -> str:
    """Describe the environment in one line that may stand in any of the files: letters, digits and harmless marks."""
    words = re.sub(r"[^\w .,;:()@-]", "", " ".join(export.description.split()))[:200].strip()
    return words if words.endswith(".") else f"{words or 'An environment'}."


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(json.dumps(name) for name in names)


def nemo_gym(export: Export) -> Iterator[File]:
    """A resources server for a checkout of NeMo Gym, with its configuration and rows."""
    env, own, agent = export.env, f"{export.package}_core", f"{export.package}_agent"
    kind = gym_server.agent_kind(env)
    yield from _bundle(export)
    for path, content in _core("", "flywheel.core.interop.gym_server"):
        yield f"{own}/{path.removeprefix('core/')}", content
    yield "__init__.py", b""
    yield "app.py", _filled(export, "nemo_gym/app.py", IMPORT=own)
    datasets = []
    for split in export.splits:
        rows = ((name, task) for name, task in export.tasks() if name == split)
        yield f"data/{split}.jsonl", b"".join(gym_server.lines(env, rows, environment=export.ref, agent=agent))
        use = "train" if split == "train" else "validation"
        path = f"resources_servers/{export.package}/data/{split}.jsonl"
        datasets.append(
            f"      - name: {split}\n        type: {use}\n        jsonl_fpath: {path}\n        license: TBD"
        )
    words = {"AGENT": kind, "MAX_STEPS": str(env.max_turns), "DATASETS": "\n".join(datasets)}
    yield f"configs/{export.package}.yaml", _filled(export, "nemo_gym/config.yaml", **words)
    yield "requirements.txt", "\n".join(["-e nemo-gym[dev] @ ../../", *carried_code.requirements(), ""]).encode()
    yield "README.md", _filled(export, "nemo_gym/README.md", AGENT=kind)


def verifiers(export: Export) -> Iterator[File]:
    """A package with a taskset of verifiers 0.4."""
    exports = ("Taskset",) if export.env.tools else ("Env", "Taskset")
    kind = "tools" if export.env.tools else "words"
    yield from _package(export, "verifiers", ["verifiers>=0.4,<0.5"])
    yield f"{export.package}/common.py", _filled(export, "verifiers/common.py")
    yield f"{export.package}/taskset.py", _filled(export, f"verifiers/taskset_{kind}.py")
    init = _filled(export, "verifiers/init.py", EXPORTS=", ".join(exports), QUOTED=_quoted(exports))
    yield f"{export.package}/__init__.py", init


def verifiers_classic(export: Export) -> Iterator[File]:
    """A package with `load_environment()`, for verifiers up to 0.3."""
    assert export.env
    yield from _package(export, "verifiers_classic", ["verifiers<0.4", "datasets"])
    yield f"{export.package}/environment.py", _filled(export, "verifiers_classic/environment.py")
    yield f"{export.package}/__init__.py", _filled(export, "verifiers_classic/init.py")


def _package(export: Export, format: str, own: list[str]) -> Iterator[File]:
    yield from _bundle(export, f"{export.package}/")
    yield from _core(f"{export.package}/")
    needed = _quoted([*own, *carried_code.requirements()])
    yield "pyproject.toml", _filled(export, f"{format}/pyproject.toml", DEPENDENCIES=needed)
    yield "README.md", _filled(export, f"{format}/README.md")


def harbor(export: Export) -> Iterator[File]:
    """A folder of Harbor tasks, one for each task."""
    env = export.env
    about, needed = _json(export.about()), _shell(carried_code.requirements())
    # The agent has a shell in this image: how it is judged stays outside.
    shown = _json(export.about() | {"verifier": {"kind": export.kind}})
    image = [
        *((f"environment/flywheel_env/{path}", content) for path, content in _core("")),
        ("environment/flywheel_env/__init__.py", b""),
        ("environment/flywheel_env/__main__.py", _filled(export, "harbor/main.py")),
        ("environment/flywheel_env/environment.json", shown),
        ("environment/Dockerfile", _filled(export, "harbor/Dockerfile", REQUIREMENTS=needed)),
        ("tests/environment.json", about),
        ("tests/test.sh", _filled(export, "harbor/test.sh")),
        ("tests/score.py", _filled(export, "harbor/score.py")),
    ]
    for split, task in export.tasks():
        slug = f"{export.name}-{outside(task.id)}".lower()
        for path, content in image:
            yield f"{slug}/{path}", content
        hidden = {**task.to_json(), "target": {}}
        yield f"{slug}/environment/flywheel_env/task.json", _json(hidden)
        yield f"{slug}/tests/task.json", _json(task.to_json())
        yield (
            f"{slug}/instruction.md",
            _filled(export, "harbor/instruction.md", ASKED=_opening_text(env, task), HOW=_how(env)),
        )
        yield f"{slug}/solution/solve.sh", _filled(export, "harbor/solve.sh", COMMANDS=_solution(env, task))
        words = {"SLUG": slug, "SPLIT": split}
        quoted = {"DESCRIPTION": _title(export), "TASK": task.id, "SYNTHETIC": task.synthetic}
        words |= {name: json.dumps(value) for name, value in quoted.items()}
        yield f"{slug}/task.toml", _filled(export, "harbor/task.toml", **words)


def _opening_text(env: Environment, task: Task) -> str:
    return "\n\n".join(message.content for message in env.reset(task, 0))


def _how(env: Environment) -> str:
    if not env.tools:
        return (
            "`environment say TEXT` says it and prints the answer. Go on until it tells you that it was the last word."
        )
    what = "A call" if env.max_turns == 1 else f"At most {env.max_turns} calls"
    counts = "counts; further ones are not looked at" if env.max_turns == 1 else "count"
    ends = "ends with an answer in words" if env.max_turns == 1 else "prints an answer, or that it was the last word"
    return (
        "`environment call TOOL '{\"argument\": …}'` calls a tool and prints what it answers; `environment say TEXT` "
        f"{ends}. {what} {counts}."
    )


def _solution(env: Environment, task: Task) -> str:
    commands = []
    for message in episode(env, task, lambda messages: env.solve(task, messages)):
        if message.role != "assistant":
            continue
        for call in message.tool_calls:
            commands.append(shlex.join(["environment", "call", outside(call.name), json.dumps(call.arguments)]))
        if message.content:
            commands.append(shlex.join(["environment", "say", message.content]))
    return "\n".join(commands)


def _shell(requirements: Iterable[str]) -> str:
    return " ".join(shlex.quote(each) for each in requirements)


def openenv(export: Export) -> Iterator[File]:
    """An OpenEnv environment: models, server, Dockerfile."""
    assert export.env
    needed = ["openenv>=0.10", "uvicorn", *carried_code.requirements()]
    core = dict(_core(""))
    below = sorted({path.rpartition("/")[0].replace("/", ".") for path in core})
    packages = [export.package, f"{export.package}.server", *(f"{export.package}.{each}" for each in below)]
    yield from _bundle(export)
    yield from core.items()
    yield "__init__.py", _filled(export, "openenv/init.py")
    yield "models.py", _filled(export, "openenv/models.py")
    yield "openenv.yaml", _filled(export, "openenv/openenv.yaml")
    yield "server/__init__.py", b""
    yield "server/app.py", _filled(export, "openenv/app.py")
    yield "server/environment.py", _filled(export, "openenv/environment.py")
    yield "server/Dockerfile", _filled(export, "openenv/Dockerfile", REQUIREMENTS=_shell(needed))
    project = _filled(export, "openenv/pyproject.toml", DEPENDENCIES=_quoted(needed), PACKAGES=_quoted(packages))
    yield "pyproject.toml", project
    yield "README.md", _filled(export, "openenv/README.md", REQUIREMENTS=_shell(needed))


@dataclass(frozen=True, slots=True)
class Format:
    label: str
    description: str
    files: Callable[[Export], Iterator[File]]
    takes_runs: bool = False
    """A task may open with what an agent had said and called; elsewhere it opens with a user's words alone."""


FORMATS: dict[str, Format] = {
    "nemo_gym": Format("NeMo Gym", "a resources server with its rows, for a checkout of NeMo Gym 0.4", nemo_gym, True),
    "verifiers": Format("verifiers 0.4", "a taskset package, which prime-rl trains on too", verifiers),
    "verifiers_classic": Format("verifiers, classic", "load_environment(), for verifiers up to 0.3", verifiers_classic),
    "harbor": Format("Harbor", "a folder of tasks, each with image, tests and solution", harbor),
    "openenv": Format("OpenEnv", "an environment with its server and Dockerfile", openenv, True),
}


def check_openings(export: Export, format: str) -> None:
    """Raise CannotExport where a task begins in the middle of a recorded run and the format has no words for that."""
    if FORMATS[format].takes_runs:
        return
    for _, task in export.tasks():
        if any(row["role"] in ("assistant", "tool") for row in task.state.get("messages") or ()):
            others = " or ".join(each.label for each in FORMATS.values() if each.takes_runs)
            raise CannotExport(
                f"{task.id} begins in the middle of a recorded run, and {FORMATS[format].label} opens a task with a "
                f"user's words alone; take {others} instead"
            )
