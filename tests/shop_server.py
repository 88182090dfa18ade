"""A team's own tool server, a small shop, over plain HTTP and over MCP as its specification has it (2025-06-18): real
sockets, and faults on request."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CANCEL = {
    "name": "cancel",
    "description": "Cancel an order.",
    "parameters": {
        "type": "object",
        "properties": {"order_id": {"type": "string"}},
        "required": ["order_id"],
        "additionalProperties": False,
    },
}
LOOK = {**CANCEL, "name": "get_order", "description": "Look an order up."}
TOOLS = [CANCEL, LOOK]
Fault = Callable[["_Handler"], None]
"""What is done in place of an answer."""


class Shop:
    """Each session has orders of its own; without one there is one state for all."""

    def __init__(self) -> None:
        self.sessions: dict[str, dict[str, Any]] = {"": self.fresh({})}
        self.tools: list[dict[str, Any]] = list(TOOLS)
        self.asked: list[tuple[str, str, Any]] = []
        """Method, path (or MCP's method) and body."""
        self.headers: list[dict[str, str]] = []
        self.numbers: list[Any] = []
        """Of MCP's questions."""
        self.faults: dict[str, Fault] = {}
        """By path, or by MCP's method."""
        self.streams = False
        """Whether MCP answers as a stream of events, which stays open."""
        self.ticks = 0
        self.is_random = False
        self.lock = threading.Lock()

    @staticmethod
    def fresh(own: dict[str, Any]) -> dict[str, Any]:
        return {"orders": {"1003": {"status": "open"}} | own.get("orders", {})}

    def begin(self, task: dict[str, Any]) -> str:
        with self.lock:
            name = f"s-{len(self.sessions)}"
            self.sessions[name] = self.fresh(task.get("state") or {})
        return name

    def call(self, session: str, name: str, arguments: dict[str, Any]) -> str:
        orders = self.sessions[session]["orders"]
        if (order := orders.get(arguments["order_id"])) is None:
            raise KeyError(f"there is no order {arguments['order_id']}")
        if name == "cancel":
            order["status"] = "cancelled"
        self.ticks += 1
        return f"Order {arguments['order_id']} is {order['status']}." + (f" {self.ticks}" if self.is_random else "")

    def calls(self) -> list[Any]:
        return [body for method, path, body in self.asked if path.startswith("/tools/") or path == "tools/call"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shop: Shop

    def do_GET(self) -> None:
        self._plain(None)

    def do_DELETE(self) -> None:
        self.shop.asked.append(("DELETE", self.path, None))
        self.say(200, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/mcp":
            self._mcp(body)
        else:
            self._plain(body)

    def _plain(self, body: Any) -> None:
        shop, path = self.shop, self.path
        shop.asked.append((self.command, path, body))
        shop.headers.append(dict(self.headers))
        if fault := shop.faults.get(path):
            fault(self)
            return
        session = self.headers.get("Flywheel-Session", "")
        if path == "/tools":
            self.value({"tools": [{"type": "function", "function": tool} for tool in shop.tools]})
        elif path == "/reset":
            self.value({"session": shop.begin(body["task"])})
        elif path == "/state":
            self.value(shop.sessions[session])
        else:
            try:
                self.value({"result": shop.call(session, path.removeprefix("/tools/"), body), "over": False})
            except KeyError as error:
                self.value({"detail": error.args[0]}, 422)

    def _mcp(self, body: dict[str, Any]) -> None:
        shop, method = self.shop, body["method"]
        shop.asked.append(("POST", method, body.get("params")))
        shop.numbers.append(body.get("id"))
        shop.headers.append(dict(self.headers))
        if fault := shop.faults.get(method):
            fault(self)
        elif "id" not in body:
            self.say(202, b"")
        elif method == "initialize":
            name = shop.begin({})
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "shop"}}
            self.rpc(body["id"], {"result": result}, {"Mcp-Session-Id": name})
        elif (
            self.headers["MCP-Protocol-Version"] != "2025-06-18" or self.headers["Mcp-Session-Id"] not in shop.sessions
        ):
            self.say(400, b"no such session")
        elif method == "tools/list":
            place = int(body["params"].get("cursor", "0"))
            page = {"tools": [mcp_tool(tool) for tool in shop.tools[place : place + 1]]}
            more = {"nextCursor": str(place + 1)} if place + 1 < len(shop.tools) else {}
            self.rpc(body["id"], {"result": page | more})
        else:
            self.rpc(body["id"], {"result": self._called(body["params"])})

    def _called(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            text, is_error = self.shop.call(self.headers["Mcp-Session-Id"], params["name"], params["arguments"]), False
        except KeyError as error:
            text, is_error = error.args[0], True
        return {"content": [{"type": "text", "text": text}], "isError": is_error}

    def rpc(self, number: int, value: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        answer = {"jsonrpc": "2.0", "id": number, **value}
        if not self.shop.streams:
            self.say(200, json.dumps(answer).encode(), headers)
            return
        told = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "working"}}
        self.send_response(200)
        for name, text in {"Content-Type": "text/event-stream", "Connection": "close", **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        for each in (told, answer):
            self.wfile.write(f"event: message\r\ndata: {json.dumps(each)}\r\n\r\n".encode())
            self.wfile.flush()
        self.close_connection = True
        self.connection.settimeout(30)
        with contextlib.suppress(OSError):
            self.connection.recv(1)  # the stream stays open for as long as the client does

    def value(self, value: Any, status: int = 200) -> None:
        self.say(status, json.dumps(value).encode())

    def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def mcp_tool(tool: dict[str, Any]) -> dict[str, Any]:
    shown = {"name": tool["name"], "description": tool["description"], "inputSchema": tool["parameters"]}
    return shown | ({"annotations": tool["annotations"]} if "annotations" in tool else {})


def hangs(handler: _Handler) -> None:
    time.sleep(3)
    handler.close_connection = True


def floods(handler: _Handler) -> None:
    """Answer 100 MB."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(100 * 2**20))
    handler.end_headers()
    try:
        for _ in range(100):
            handler.wfile.write(b"x" * 2**20)
    except OSError:
        handler.close_connection = True


def redirects(handler: _Handler) -> None:
    handler.say(307, b"", {"Location": "http://127.0.0.1:1/"})


def breaks_off(handler: _Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"result": "Or')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def fails(handler: _Handler) -> None:
    handler.say(500, b"out of paper")


def babbles(handler: _Handler) -> None:
    handler.say(200, b"<html>hello</html>")


def says(value: Any) -> Fault:
    return lambda handler: handler.value(value)


@contextmanager
def serve_shop() -> Iterator[tuple[Shop, str]]:
    """The shop and its address; MCP is at /mcp there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads, server.block_on_close = True, False
    shop = Shop()
    server.RequestHandlerClass = type("Handler", (_Handler,), {"shop": shop})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield shop, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
