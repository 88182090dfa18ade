"""A world or a tool server to begin with, out of the tools that an agent has: each a function still to be written."""

import builtins
import keyword
import pprint
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.core.envs.worlds.tool_functions import KEEPERS, MARKS
from flywheel.core.traces import tooling

_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "object": "dict[str, Any]"}
_HEAD = '''"""The tools of {of}. Write what each of them does with the state; what it raises is its answer."""

from typing import Any, Literal

{constants}
def reset(seed: int) -> dict[str, Any]:
    """Return the state at the beginning: the same for the same seed."""
    return {{}}
'''
_SERVER_HEAD = '''"""A tool server with the tools of {of}.

Write what each of them does with the state of its session; what it raises is its answer.
Start it with: python server.py 8000
"""

import copy
import json
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import unquote


def reset(seed: int) -> dict[str, Any]:
    """Return the state at the beginning: the same for the same seed. A task may bring parts of its own."""
    return {{}}
'''
_SERVER_TAIL = """SESSIONS: dict[str, dict[str, Any]] = {}
SESSIONS_MAX = 1000


class Door(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/tools":
            self.reply(200, {"tools": DEFINITIONS})
        elif self.path == "/state" and self.session in SESSIONS:
            self.reply(200, SESSIONS[self.session])
        else:
            self.reply(410 if self.path == "/state" else 404, {"error": "there is nothing here"})

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = unquote(self.path.removeprefix("/tools/"))
        if self.path == "/reset":
            session = str(uuid.uuid4())
            SESSIONS[session] = reset(sent["seed"]) | (sent["task"]["state"] or {})
            for oldest in list(SESSIONS)[:-SESSIONS_MAX]:
                SESSIONS.pop(oldest, None)
            self.reply(200, {"session": session})
        elif name not in TOOLS:
            self.reply(404, {"error": f"there is no tool {name}"})
        elif self.session not in SESSIONS:
            self.reply(410, {"error": "this session is over"})
        else:
            self.call(name, sent)

    def call(self, name: str, arguments: dict[str, Any]) -> None:
        state = copy.deepcopy(SESSIONS[self.session])  # a call that fails changes nothing
        try:
            result = TOOLS[name](state, **arguments)
        except NotImplementedError as error:
            return self.reply(501, {"error": f"{name}: {error}"})  # the server's fault: unscored
        except Exception as error:
            return self.reply(422, {"error": str(error)})  # an answer
        SESSIONS[self.session] = state
        self.reply(200, {"result": result})

    @property
    def session(self) -> str:
        return self.headers.get("Flywheel-Session", "")

    def reply(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Door).serve_forever()
"""
_TAKEN = {
    *dir(builtins), "reset", "Any", "Literal", "copy", "json", "sys", "uuid", "unquote", "BaseHTTPRequestHandler",
    "ThreadingHTTPServer", "DEFINITIONS", "TOOLS", "SESSIONS", "SESSIONS_MAX", "Door",
}  # fmt: skip
"""What a tool's function may not be called, or what it hides is missed."""


def stubs(of: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """The source of a world with these tools, of which nothing works yet. `of` says whose they are."""
    named = _named(tools)
    marks = {mark: [f for f, tool in named.items() if tool.get(key)] for mark, key in MARKS.items()}
    other = {function: tool["name"] for function, tool in named.items() if function != tool["name"]}
    values = marks | {"NAMES": other, "COMPARE": _compared(named)}
    constants = "".join(f"{name} = {value!r}\n" for name, value in values.items() if value)
    head = _HEAD.format(of=_line(of), constants=f"{constants}\n" if constants else "")
    return "\n\n".join([head, *(_function(*each) for each in named.items())])


def server_stubs(of: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """The program of a tool server (`server_world`) with these tools, of which nothing works yet: a session for each
    attempt, a reset, and a state to look at."""
    named = _named(tools)
    definitions = pprint.pformat([dict(tool) for tool in tools], width=110, sort_dicts=False)
    by_name = "".join(f"    {tool['name']!r}: {function},\n" for function, tool in named.items())
    functions = [_function(*each) for each in named.items()]
    door = f"DEFINITIONS = {definitions}\nTOOLS = {{\n{by_name}}}\n{_SERVER_TAIL}"
    return "\n\n".join([_SERVER_HEAD.format(of=_line(of)), *functions, door])


def _compared(named: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    pairs = ((function, tooling.comparisons(tool)) for function, tool in named.items())
    return {f"{function}.{name}": how for function, found in pairs for name, how in found.items() if _is_argument(name)}


def _is_argument(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name not in KEEPERS


def _named(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The tools by names that Python takes for functions."""
    named: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        named[_identifier(tool["name"], {*_TAKEN, *named})] = tool
    return named


def _function(name: str, tool: Mapping[str, Any]) -> str:
    properties, parameters = tooling.properties(tool), tool.get("parameters")
    required = parameters.get("required", ()) if isinstance(parameters, Mapping) else ()
    ordered = sorted(filter(_is_argument, properties), key=lambda key: key not in required)
    arguments = [
        f"{key}: {_hint(properties[key])}" if key in required else f"{key}: {_hint(properties[key])} | None = None"
        for key in ordered
    ]
    about = _line(tool.get("description")) or f"Carry out {_line(tool['name'])}."
    described = [f"    {key}: {text}\n" for key in ordered if (text := _line(properties[key].get("description")))]
    words = "\n" + "".join(["\n", *described, "    "]) if described else ""
    head = f"def {name}({', '.join(['state: dict[str, Any]', *arguments])}) -> Any:"
    return f'{head}\n    """{about}{words}"""\n    raise NotImplementedError("this tool is not written yet")\n'


def _hint(schema: Mapping[str, Any]) -> str:
    choices, kind = schema.get("enum"), schema.get("type")
    if isinstance(choices, list) and choices and all(isinstance(each, str) for each in choices):
        return f"Literal[{', '.join(repr(each) for each in choices)}]"
    if kind == "array":
        inner = schema.get("items")
        return f"list[{_hint(inner)}]" if isinstance(inner, Mapping) else "list"
    return _SIMPLE.get(kind, "Any") if isinstance(kind, str) else "Any"


def _identifier(name: str, taken: set[str]) -> str:
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "tool"
    plain = f"tool_{plain}" if plain[0].isdigit() or keyword.iskeyword(plain) else plain
    return next(each for each in (plain, *(f"{plain}_{n}" for n in range(2, 1000))) if each not in taken)


def _line(text: Any) -> str:
    """One line that ends no docstring and escapes nothing."""
    return " ".join(str(text or "").replace("\\", "/").replace('"', "'").split())[:500]
