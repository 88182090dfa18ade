"""The agent of the second story, written as a team would write it: a loop of its own, with the openai SDK alone.

    python -m workers.reference.helpdesk.helpdesk_agent 9000        the door through which Flywheel evaluates it

In production its tools are its own code (`answer` with the shop's). Under evaluation they are those of the attempt's
world. Its prompt and tool definitions are kept as a version at Flywheel, whose gateway adds them.
"""

import hashlib
import json
import sys
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from openai import OpenAI

TURNS: Final = 12
CODE: Final = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
"""What names this code in a version."""
CarryOut = Callable[[str, dict[str, Any]], str | None]
"""Carries a call out. None ends the work: nobody wants more."""


def answer(client: OpenAI, model: str, messages: list[Any], carry_out: CarryOut) -> str | None:
    """Go on from these messages to words for the customer; what was said and called is appended to them."""
    for _ in range(TURNS):
        message = client.chat.completions.create(model=model, messages=messages).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        results: list[str | None] = []
        for call in message.tool_calls:
            assert call.type == "function"
            result = carry_out(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result or ""})
            results.append(result)
        if None in results:
            return None
    raise RuntimeError(f"no answer after {TURNS} turns")


def run(work: dict[str, Any]) -> str | None:
    """One attempt that Flywheel asks for."""

    def carry_out(name: str, arguments: dict[str, Any]) -> str | None:
        headers = {"Authorization": f"Bearer {work['api_key']}"}
        url, body = f"{work['tools_url']}/{name}", json.dumps(arguments).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as reply:  # noqa: S310
            said = json.load(reply)
        return None if said["over"] else str(said["result"])

    with OpenAI(base_url=work["base_url"], api_key=work["api_key"], max_retries=0) as client:
        return answer(client, work["model"], work["messages"], carry_out)


class _Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        work = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            said: dict[str, Any] = {"output": run(work), "code": CODE}
        except Exception as error:
            said = {"error": repr(error)}
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Door).serve_forever()


if __name__ == "__main__":
    main()
