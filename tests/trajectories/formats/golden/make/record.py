"""Runs a maker script against a pretended model server and writes down the telemetry that it sends.

    python record.py NAME -- COMMAND...

One HTTP server on a free port of this machine plays both parts: an OpenAI-compatible API that always tells the same
story (`story.py`) and a receiver of OTLP. The maker's last line on standard output says what made the fixture. No
network beyond this machine is needed.
"""

import base64
import gzip
import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import answers
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

GOLDEN = Path(__file__).parent.parent
PERSONAL = re.compile(
    r"^(host|os|process|code|thread|server|client|net|network)\.|^service\.instance\.id$|^url\.|runtime|platform|"
    r"^mlflow\.(user|source|databricks|artifactLocation)|langchain_core|revision_id|(^|\.)(cwd|path|pid)$"
)
"""Attributes about the machine on which a fixture was made."""

PLACES = re.compile(r"(?:file://)?(?:/[\w.@+-]+)+/")
MAX_STACK = 300


class Heard:
    def __init__(self) -> None:
        self.traces: list[dict[str, Any]] = []
        self.logs: list[dict[str, Any]] = []
        self.other: list[str] = []


def handler(heard: Heard) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path.endswith("/chat/completions"):
                return self._say(*answers.chat(json.loads(body)))
            if self.path.endswith("/responses"):
                return self._say(*answers.responses(json.loads(body)))
            protobuf = "protobuf" in (self.headers.get("Content-Type") or "")
            if self.path.endswith("/traces"):
                heard.traces.append(_decoded(ExportTraceServiceRequest(), body) if protobuf else json.loads(body))
            elif self.path.endswith("/logs"):
                heard.logs.append(_decoded(ExportLogsServiceRequest(), body) if protobuf else json.loads(body))
            else:
                heard.other.append(f"{self.command} {self.path} {len(body)} bytes")
            return self._say("application/x-protobuf" if protobuf else "application/json", b"" if protobuf else b"{}")

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def do_GET(self) -> None:
            heard.other.append(f"GET {self.path}")
            self._say("application/json", b"{}")

        do_PATCH = do_PUT = do_POST

        def _say(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _decoded(message: Any, body: bytes) -> dict[str, Any]:
    message.ParseFromString(body)
    row: dict[str, Any] = MessageToDict(message, use_integers_for_enums=True)
    _hexed(row)
    return row


def _hexed(node: Any) -> None:
    if isinstance(node, list):
        for item in node:
            _hexed(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("traceId", "spanId", "parentSpanId") and isinstance(value, str):
                node[key] = base64.b64decode(value).hex()
            else:
                _hexed(value)


def joined(requests: list[dict[str, Any]], outer: str) -> dict[str, Any] | None:
    """All requests as one, equal resources and scopes written once."""
    inner, items = ("scopeSpans", "spans") if outer == "resourceSpans" else ("scopeLogs", "logRecords")
    resources: dict[str, dict[str, Any]] = {}
    scopes: dict[str, dict[str, Any]] = {}
    for group in (group for request in requests for group in request.get(outer, [])):
        _scrub(group)
        resource = {key: value for key, value in group.items() if key != inner}
        held = resources.setdefault(json.dumps(resource), {**resource, inner: []})
        for part in group[inner]:
            named = {key: value for key, value in part.items() if key != items}
            at = json.dumps([resource, named])
            if at not in scopes:
                scopes[at] = {**named, items: []}
                held[inner].append(scopes[at])
            scopes[at][items] += part[items]
    return {outer: list(resources.values())} if resources else None


def _scrub(node: Any) -> None:
    if isinstance(node, list):
        node[:] = [
            item
            for item in node
            if not (isinstance(item, dict) and "value" in item and PERSONAL.search(str(item.get("key", ""))))
        ]
        for item in node:
            _scrub(item)
    elif isinstance(node, dict):
        for key in ("stringValue", "message"):
            if isinstance(text := node.get(key), str) and ("Traceback (most recent" in text or "\n    at " in text):
                node[key] = PLACES.sub("", text)[:MAX_STACK]
        for value in node.values():
            _scrub(value)


def main() -> int:
    name, command = sys.argv[1], sys.argv[sys.argv.index("--") + 1 :]
    heard = Heard()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(heard))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    environment = {
        **os.environ,
        "OPENAI_API_KEY": "sk-nothing",
        "OPENAI_BASE_URL": f"{here}/v1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": here,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": "mail-assistant",
        "OTEL_RESOURCE_ATTRIBUTES": "service.version=7",
        "HERE": here,
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTHONWARNINGS": "ignore",
    }
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=180, check=False)
    time.sleep(1)
    server.shutdown()
    sys.stdout.write(ran.stdout)
    if ran.returncode or not heard.traces:
        sys.stdout.write(f"failed with {ran.returncode}; {len(heard.traces)} trace requests; {heard.other}\n")
        return 1
    fixture = {
        "made_by": ran.stdout.strip().splitlines()[-1],
        "traces": joined(heard.traces, "resourceSpans"),
        "logs": joined(heard.logs, "resourceLogs"),
    }
    text = json.dumps(fixture, indent=1, ensure_ascii=False)
    (GOLDEN / f"{name}.json").write_text(text.replace(here, "http://127.0.0.1:9") + "\n")
    sys.stdout.write(f"{name}: {len(text)} bytes; also asked for: {sorted(set(heard.other))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
