"""One export of each kind of environment, and solvers for them."""

from typing import Any

from flywheel.core.envs import Task
from flywheel.core.envs.kinds import KINDS
from flywheel.core.interop.environment_exports import Export
from flywheel.core.verifiers import digest

TOOLS = [
    {
        "name": "mail.send",
        "description": "Send a mail",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string"}, "text": {"type": "string"}},
            "required": ["to", "text"],
        },
    },
    {
        "name": "search",
        "description": "Search",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
]
SOURCES = ("episode", "tool_call", "workplace", "tictactoe")
CONFIGS: dict[str, dict[str, Any]] = {
    "tool_call": {"tools": TOOLS},
    "episode": {"tools": TOOLS},
}
COUNT = 3


def tasks_of(kind: str) -> list[Task]:
    if kind == "episode":
        sent = [{"tool": "mail.send", "arguments": {"to": "Bako", "text": f"{n}"}} for n in range(COUNT)]
        return [
            Task(f"t-{n}", f"Mail Bako the number {n}", {"wanted": [{"type": "calls", "calls": [call]}]})
            for n, call in enumerate(sent)
        ]
    if kind == "tool_call":
        return [
            Task(
                f"t-{n}",
                f"Mail Bako the number {n}",
                {"tool": "mail.send", "arguments": {"to": "Bako", "text": f"{n}"}},
            )
            for n in range(COUNT)
        ]
    generate = KINDS[kind].generate
    assert generate
    return list(generate(COUNT, seed=1))


def export_of(kind: str, tasks: list[Task] | None = None, splits: tuple[str, ...] = ("train",)) -> Export:
    verifier = {"kind": kind}
    chosen = tasks_of(kind) if tasks is None else tasks
    return Export(
        name=kind.replace("_", "-"),
        version=2,
        kind=kind,
        config=CONFIGS.get(kind, {}),
        verifier=verifier,
        digest="0" * 64,
        verifier_digest=digest(verifier),
        description='Mail & "things" </script>\n[tool] x = 1',
        tasks=lambda: [(splits[number % len(splits)], task) for number, task in enumerate(chosen)],
        splits=splits,
    )
