"""A world to begin with, out of the tools that an agent has: each a function that is still to be written."""

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.core.traces import tooling

_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "object": "dict[str, Any]"}
_HEAD = '''"""The tools of {of}. Write what each of them does with the state; what it raises is its answer."""

from typing import Any, Literal

{constants}
def reset(seed: int) -> dict[str, Any]:
    """Return the state at the beginning: the same for the same seed."""
    return {{}}
'''


def stubs(of: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """The source of a world with these tools, of which nothing works yet. `of` says whose they are."""
    names: dict[str, str] = {}
    written: list[str] = []
    unsafe: list[str] = []
    for tool in tools:
        function = _identifier(tool["name"], {"reset", *names})
        names[function] = tool["name"]
        written.append(_function(function, tool))
        unsafe += [function] if tool.get("x-unsafe") else []
    other = {function: name for function, name in names.items() if function != name}
    constants = (f"UNSAFE = {unsafe!r}\n" if unsafe else "") + (f"NAMES = {other!r}\n" if other else "")
    return "\n\n".join([_HEAD.format(of=of, constants=f"{constants}\n" if constants else ""), *written])


def _function(name: str, tool: Mapping[str, Any]) -> str:
    properties, parameters = tooling.properties(tool), tool.get("parameters")
    required = parameters.get("required", ()) if isinstance(parameters, Mapping) else ()
    fit = [
        key for key in properties if key.isidentifier() and not keyword.iskeyword(key) and key not in ("state", "db")
    ]
    ordered = sorted(fit, key=lambda key: key not in required)
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
