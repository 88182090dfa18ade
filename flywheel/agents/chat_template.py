"""Chat templates are programs that come with weights: here each is tried once, before it is stored.

`problem(template)` starts `python -m flywheel.agents.chat_template`, which sets its own limits, compiles the template
as transformers does and renders short conversations with it. A template may raise: many refuse roles or want tools, and
say so. It may not fail to compile, compute for long, or want much memory or text for what little it is shown.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = Path(__file__).resolve().parents[2]
CPU_S = 2
"""Whole seconds of processor time, of which a start takes some tenths. Most models' templates take milliseconds."""
MEMORY = 512 * 2**20
"""Bytes of addresses; Python and Jinja take a tenth."""
TEXT = 1_000_000
"""Characters that may become of one conversation; the conversations have some hundred."""
PATIENCE_S = 60.0
"""On a machine that is busy. The processor's time is what is limited."""

_CALL = {"id": "call-0", "type": "function", "function": {"name": "look_up", "arguments": {"day": "friday"}}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a day up.",
        "parameters": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
    },
}
_ASKED = {"role": "user", "content": "What is on friday?"}
CONVERSATIONS: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = [
    ([_ASKED], None),
    ([{"role": "system", "content": "You help."}, _ASKED], None),
    (
        [
            {"role": "system", "content": "You help."},
            _ASKED,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call-0", "name": "look_up", "content": "nothing"},
            {"role": "assistant", "content": "Nothing."},
            {"role": "user", "content": "Thank you."},
        ],
        [_TOOL],
    ),
]
"""Messages and tools."""
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def problem(template: str) -> str:
    """Why a chat template cannot be used, as the end of a sentence; empty where it can."""
    known = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH") if name in os.environ}
    command = [sys.executable, "-m", "flywheel.agents.chat_template"]
    try:
        done = subprocess.run(
            command,
            input=template.encode(errors="replace"),
            cwd=ROOT,
            env=known,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"was not rendered within {PATIENCE_S:g} s"
    if done.returncode == -signal.SIGXCPU:
        return f"takes more than {CPU_S} s of processor time for a short conversation"
    if done.returncode:
        return f"ends the process that renders it (code {done.returncode})"
    return done.stdout.decode()[:300]


class _Generation(Extension):
    """`{% generation %}`, with which templates mark what the model is trained on."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up for chat templates."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = _strftime_now
    return made


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


# The process itself -------------------------------------------------------------------------------------------------


def main() -> None:
    for kind, soft, hard in (
        (resource.RLIMIT_AS, MEMORY, MEMORY),
        (resource.RLIMIT_CPU, CPU_S, CPU_S + 1),  # at the hard limit it would be SIGKILL, which may mean anything
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        with contextlib.suppress(ValueError):  # a system that has no such limit, or a lower one is ours already
            resource.setrlimit(kind, (soft, hard))
    sys.stdout.buffer.write(_problem(sys.stdin.buffer.read().decode()).encode(errors="replace"))


def _problem(template: str) -> str:
    try:
        compiled = environment().from_string(template)
        return next(filter(None, (_refusal(compiled, *shown) for shown in CONVERSATIONS)), "")
    except MemoryError:
        return f"needs more than {MEMORY // 2**20} MB of memory for a short conversation"
    except TemplateSyntaxError as error:
        return f"does not compile: line {error.lineno}: {error.message}"
    except Exception as error:  # Python's own compiler has limits, too
        return f"does not compile: {error}"


def _refusal(compiled: Template, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    length = 0
    try:
        for piece in compiled.generate(messages=messages, tools=tools, add_generation_prompt=True, **SPECIAL):
            length += len(piece)
            if length > TEXT:
                return f"makes more than {TEXT:,} characters of a short conversation"
    except MemoryError:
        raise
    except Exception:  # it wants other roles, or no tools; what it raises is told where it is asked
        return ""
    return ""


if __name__ == "__main__":
    main()
