"""A server of our own that takes and gives JSON, with the standard library alone: threads, and a token."""

import hmac
import json
import socket
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any


class JsonServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: "type[JsonHandler]", token: str = "") -> None:
        """An empty token lets everybody in who reaches the address."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        self.token = token

    def server_bind(self) -> None:
        """Bind without asking anybody for this machine's name."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller who did not wait for an answer is nobody's mistake; the rest goes to stderr."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class JsonHandler(BaseHTTPRequestHandler):
    server: JsonServer
    protocol_version = "HTTP/1.1"
    timeout = 120
    disable_nagle_algorithm = True
    """Head and body are two packets: the second would wait 40 ms for the caller's word of the first, at every call."""
    server_version, sys_version = "Flywheel", ""

    def is_token(self, given: str) -> bool:
        """Whether this is the server's token, or it wants none."""
        wanted = self.server.token
        return not wanted or hmac.compare_digest(given.strip().encode(), wanted.encode())

    def send_json(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: rows, conversations and tokens do not belong into logs."""
