"""An attempt's tools as an MCP server, for agents that have an MCP client: streamable HTTP without sessions, whose
answers are JSON.

One message a request: initialize, ping, `tools/list`, `tools/call`; notifications are taken and do nothing. There is no
stream of the server's own, so GET is answered with 405, as the specification allows.
"""

from collections.abc import Mapping
from typing import Any

from flywheel.core.envs.worlds.server_world import MCP_VERSIONS
from flywheel.core.traces import openai_messages
from flywheel.edge.refusals import Refused
from flywheel.evals.attempts import attempt_tools
from flywheel.evals.models import ProgramAttempt

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32600, -32601, -32602
OVER = "The episode is over."


class _Wrong(Exception):
    def __init__(self, code: int, problem: str) -> None:
        super().__init__(problem)
        self.code = code


def answer(attempt: ProgramAttempt, message: Any) -> dict[str, Any] | None:
    """The answer to one message; None to one that wants none. Raises Stale and Over, where the attempt has ended."""
    number = message.get("id") if isinstance(message, Mapping) else None
    try:
        if not isinstance(message, Mapping) or not isinstance(method := message.get("method"), str):
            raise _Wrong(INVALID_REQUEST, "expected one JSON-RPC request")
        if "id" not in message:
            return None
        params = message.get("params")
        result = _result(attempt, method, params if isinstance(params, Mapping) else {})
    except _Wrong as wrong:
        return {"jsonrpc": "2.0", "id": number, "error": {"code": wrong.code, "message": str(wrong)}}
    return {"jsonrpc": "2.0", "id": number, "result": result}


def _result(attempt: ProgramAttempt, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in MCP_VERSIONS else MCP_VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "flywheel", "version": "1"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [_definition(tool) for tool in attempt_tools.environment_of(attempt).tools]}
    if method == "tools/call":
        return _called(attempt, params)
    raise _Wrong(METHOD_NOT_FOUND, f"there is no method {method[:100]!r}")


def _called(attempt: ProgramAttempt, params: Mapping[str, Any]) -> dict[str, Any]:
    name = params.get("name")
    if not isinstance(name, str):
        raise _Wrong(INVALID_PARAMS, "name: expected the name of a tool")
    try:
        made = attempt_tools.use(attempt, name, params.get("arguments", {}))
    except Refused as refused:
        if refused.status != Refused.status:
            raise
        return {"content": [{"type": "text", "text": str(refused)}], "isError": True}
    return {"content": [{"type": "text", "text": OVER if made.result is None else made.result}], "isError": False}


def _definition(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("parameters")
    found = {"name": openai_messages.outside(tool["name"]), "description": tool.get("description", "")}
    return {**found, "inputSchema": schema if isinstance(schema, dict) and schema.get("type") else {"type": "object"}}
