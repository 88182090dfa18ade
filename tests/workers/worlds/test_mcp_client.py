"""MCP over streamable HTTP: the handshake, pages, events, and what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest

from flywheel.core.envs.worlds.server_world import MCP, Server
from flywheel.core.verifiers import WorldError
from tests.shop_server import TOOLS, Shop, says, serve_shop
from workers.worlds.mcp_client import McpLine
from workers.worlds.server_lines import Asked, Patience
from workers.worlds.tool_servers import read_tools


@pytest.fixture
def shop() -> Iterator[tuple[Shop, McpLine]]:
    with serve_shop() as (there, url):
        yield there, McpLine(Asked(Server(f"{url}/mcp", MCP), "", Patience(5.0, 0.0, 0.01)))


@pytest.mark.parametrize("streams", [False, True])
def test_tools_are_listed_page_by_page_and_called_in_a_session(shop: tuple[Shop, McpLine], streams: bool) -> None:
    there, line = shop
    there.streams = streams
    line.begin(0, {})
    assert [tool["name"] for tool in line.tools()] == ["cancel", "get_order"]
    assert line.call("cancel", {"order_id": "1003"}) == "Order 1003 is cancelled."
    assert line.call("cancel", {"order_id": "9"}) == "Error: there is no order 9"
    assert [path for _, path, _ in there.asked][:2] == ["initialize", "notifications/initialized"]
    assert there.sessions[""]["orders"]["1003"]["status"] == "open"
    line.end()
    assert there.asked[-1][0] == "DELETE"


def test_what_may_destroy_something_is_unsafe(shop: tuple[Shop, McpLine]) -> None:
    there, line = shop
    hints: list[Any] = [
        {"destructiveHint": True},
        {"destructiveHint": False},
        {},
        None,
        "yes",
        {"destructiveHint": "yes"},
    ]
    there.tools = [{**TOOLS[0], "name": f"t{place}", "annotations": hint} for place, hint in enumerate(hints)]
    line.begin(0, {})
    assert [tool["name"] for tool in read_tools(line) if "x-unsafe" in tool] == ["t0"]


def test_another_version_of_the_protocol_is_refused(shop: tuple[Shop, McpLine]) -> None:
    there, line = shop
    result = {"protocolVersion": "2031-01-01", "capabilities": {}}
    there.faults["initialize"] = says({"jsonrpc": "2.0", "id": 1, "result": result})
    with pytest.raises(WorldError, match="it speaks MCP '2031-01-01', and 2025-11-25, 2025-06-18, 2025-03-26 are"):
        line.begin(0, {})


def test_pages_have_an_end(shop: tuple[Shop, McpLine]) -> None:
    there, line = shop
    line.begin(0, {})
    there.tools = there.tools * 30
    with pytest.raises(WorldError, match="tools/list: it has more than 50 pages"):
        line.tools()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"jsonrpc": "2.0", "id": 99, "result": {}}, "cancel: its answer is no JSON-RPC"),
        ({"jsonrpc": "2.0", "id": 2, "result": []}, "cancel: its result is no object"),
        ({"jsonrpc": "2.0", "id": 2, "error": {"code": -32603, "message": "boom"}}, "the error -32603: boom"),
    ],
)
def test_an_answer_that_is_none_is_told(shop: tuple[Shop, McpLine], value: Any, words: str) -> None:
    there, line = shop
    line.begin(0, {})
    there.faults["tools/call"] = says(value)
    with pytest.raises(WorldError, match=words):
        line.call("cancel", {"order_id": "1003"})


def test_arguments_that_the_server_refuses_are_an_answer(shop: tuple[Shop, McpLine]) -> None:
    there, line = shop
    line.begin(0, {})
    there.faults["tools/call"] = says({"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": "no"}})
    assert line.call("cancel", {"order_id": "1003"}) == "Error: no"


def test_what_is_no_words_is_named(shop: tuple[Shop, McpLine]) -> None:
    there, line = shop
    line.begin(0, {})
    content = [{"type": "text", "text": "Here."}, {"type": "image", "mimeType": "image/png", "data": "A" * 1000}]
    there.faults["tools/call"] = says({"jsonrpc": "2.0", "id": 2, "result": {"content": content}})
    assert line.call("cancel", {}) == 'Here.\n{"type": "image", "mimeType": "image/png"}'
