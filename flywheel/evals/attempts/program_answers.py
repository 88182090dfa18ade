"""Answers of a program to one turn of an attempt: as the body of an HTTP answer, a command's output, or a result."""

import json
from typing import Any

from flywheel.edge.refusals import Refused


def answer_of(value: Any) -> dict[str, Any]:
    """Read `{"output", "error", "code"}`, as `attempt_lifecycle.answer` takes it. Raises Refused."""
    if not isinstance(value, dict) or not {"output", "error"} & set(value):
        raise Refused('send a JSON object with "output", or with "error"', field="output")
    output, error, code = value.get("output"), value.get("error") or "", value.get("code") or ""
    if not isinstance(code, str):
        raise Refused("is the commit or image digest that the program runs, as a text", field="code")
    return {
        "output": None if output is None else _text(output),
        "error": f"the program says: {_text(error)}" if error else "",
        "code": code,
    }


def printed(content: str) -> dict[str, Any]:
    """Read what a command printed: an object as above, or its output as text."""
    written = content.strip()
    try:
        value = json.loads(written) if written.startswith("{") else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and {"output", "error"} & set(value):
        return answer_of(value)
    return {"output": written or None}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
