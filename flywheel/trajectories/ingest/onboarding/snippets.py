"""Snippets that make each framework send here: the connect page shows and `docs/guides/connect.md` repeats them.

Every text is complete and runs as it stands, given what `install` installs and a model's key where it asks a model.
`http://127.0.0.1:8000` and `fw_YOUR_KEY` stand for the address and the key; `Snippet.filled` puts in the real ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from textwrap import indent
from typing import Literal

ORIGIN = "http://127.0.0.1:8000"
KEY = "fw_YOUR_KEY"
PROJECT = "YOUR_PROJECT"

Language = Literal["python", "javascript", "shell", "yaml"]


@dataclass(frozen=True, slots=True)
class Snippet:
    key: str
    """Its name in addresses."""
    label: str
    language: Language
    text: str
    install: str = ""
    note: str = ""
    """What is good to know, in one or two sentences."""
    scope: str = "ingest"
    """Of the key."""
    needs: tuple[str, ...] = ()
    """Python modules that it imports beside the standard library."""
    file: str = ""
    """What one would call it."""
    choice: str = ""
    """Where several of one label are ways to the same end: this one, in a word."""

    def filled(self, origin: str, key: str = KEY, project: str = PROJECT) -> "Snippet":
        """With the real address, key and project. An empty key leaves the placeholder."""
        text = self.text.replace(ORIGIN, origin).replace(KEY, key or KEY).replace(PROJECT, project)
        return replace(self, text=text)


_OTEL = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
_OTEL_MODULES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
_IMPORTS = """\
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
"""
_EXPORTER = """\
exporter = OTLPSpanExporter(
    endpoint="http://127.0.0.1:8000/v1/traces",
    headers={"Authorization": "Bearer fw_YOUR_KEY"},
)
"""
_PROVIDER = """\
provider = TracerProvider(resource=Resource.create({"service.name": "my-agent"}))
provider.add_span_processor(BatchSpanProcessor(exporter))
"""
_ASK_OPENAI = """\
answer = OpenAI().chat.completions.create(
    model="gpt-4.1-mini",
    messages=[{"role": "user", "content": "Where is my order A-17?"}],
)
print(answer.choices[0].message.content)
"""
_ASK_GATEWAY = _ASK_OPENAI.replace("OpenAI()", "client").replace("],", "],\n    extra_headers=run,")

_TRACED = f"""\
from openai import OpenAI
from openinference.instrumentation.openai import OpenAIInstrumentor
{_IMPORTS}
{_EXPORTER}{_PROVIDER}OpenAIInstrumentor().instrument(tracer_provider=provider)

# One span around a run: the model calls in it are one trajectory.
with provider.get_tracer("my-agent").start_as_current_span("my-agent") as run:
    run.set_attribute("openinference.span.kind", "AGENT")
    run.set_attribute("session.id", "conversation-1")
{indent(_ASK_OPENAI, "    ")}provider.shutdown()
"""

_RUN = """\
def run(question: str) -> str:
    answer = OpenAI().chat.completions.create(
        model="gpt-4.1-mini", messages=[{"role": "user", "content": question}]
    )
    return answer.choices[0].message.content or ""


print(run("Where is my order A-17?"))
"""
_JS_IMPORTS = """\
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { resourceFromAttributes } from '@opentelemetry/resources'
import { BatchSpanProcessor, NodeTracerProvider } from '@opentelemetry/sdk-trace-node'
"""
_JS_PROVIDER = """\
const exporter = new OTLPTraceExporter({
  url: 'http://127.0.0.1:8000/v1/traces',
  headers: { Authorization: 'Bearer fw_YOUR_KEY' },
})
const provider = new NodeTracerProvider({
  resource: resourceFromAttributes({ 'service.name': 'my-agent' }),
  spanProcessors: [new BatchSpanProcessor(exporter)],
})
provider.register()
"""

_ALL = (
    Snippet(
        key="openai",
        label="OpenAI SDK",
        choice="trace",
        language="python",
        file="agent.py",
        install=f"pip install openai openinference-instrumentation-openai {_OTEL}",
        needs=(*_OTEL_MODULES, "openai", "openinference.instrumentation.openai"),
        note="Your calls go where they went. Without the span around a run, calls are put together where one's messages"
        " go on from another's.",
        text=_TRACED,
    ),
    Snippet(
        key="gateway",
        label="OpenAI SDK",
        choice="gateway",
        language="python",
        file="agent.py",
        install="pip install openai",
        needs=("openai",),
        scope="gateway",
        note="No instrumentation: two lines change, and each call is recorded on its way. An admin says under"
        " Settings › Gateway where the calls go on to. Without the headers of a run, calls are put together where one's"
        " messages go on from another's.",
        text=f"""\
import uuid

from openai import OpenAI

client = OpenAI(
    base_url="http://127.0.0.1:8000/gateway/v1",
    api_key="fw_YOUR_KEY",
    default_headers={{"X-Flywheel-Agent": "my-agent"}},
)
# The same for all calls of a run, which make one trajectory.
run = {{"X-Flywheel-Trace-Id": uuid.uuid4().hex, "X-Flywheel-Session-Id": "conversation-1"}}
{_ASK_GATEWAY}""",
    ),
    Snippet(
        key="environment",
        label="Environment variables",
        language="shell",
        note="Every OpenTelemetry SDK and most agent frameworks read these. The base address gets /v1/traces appended; "
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT would be used as it is. %20 is the space, as the specification wants it.",
        text="""\
export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:8000
export OTEL_EXPORTER_OTLP_HEADERS=Authorization=Bearer%20fw_YOUR_KEY
export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf
export OTEL_SERVICE_NAME=my-agent
""",
    ),
    Snippet(
        key="opentelemetry-python",
        label="OpenTelemetry, Python",
        language="python",
        file="agent.py",
        install=f"pip install {_OTEL}",
        needs=_OTEL_MODULES,
        note="Spans are sent in batches every 5 s: a short script has to end with shutdown().",
        text=f"""\
import json

from opentelemetry import trace
{_IMPORTS}
{_EXPORTER}{_PROVIDER}trace.set_tracer_provider(provider)
tracer = trace.get_tracer("my-agent")

# Your instrumentation emits spans like these; here they are written by hand.
question = [{{"role": "user", "parts": [{{"type": "text", "content": "Where is my order A-17?"}}]}}]
answer = [{{"role": "assistant", "parts": [{{"type": "text", "content": "It comes on Friday."}}]}}]
with tracer.start_as_current_span("invoke_agent my-agent") as agent:
    agent.set_attribute("gen_ai.operation.name", "invoke_agent")
    agent.set_attribute("gen_ai.agent.name", "my-agent")
    with tracer.start_as_current_span("chat gpt-4.1-mini") as chat:
        chat.set_attribute("gen_ai.operation.name", "chat")
        chat.set_attribute("gen_ai.request.model", "gpt-4.1-mini")
        chat.set_attribute("gen_ai.input.messages", json.dumps(question))
        chat.set_attribute("gen_ai.output.messages", json.dumps(answer))
        chat.set_attribute("gen_ai.usage.input_tokens", 14)
        chat.set_attribute("gen_ai.usage.output_tokens", 6)
provider.shutdown()
""",
    ),
    Snippet(
        key="opentelemetry-js",
        label="OpenTelemetry, JavaScript",
        language="javascript",
        file="agent.mjs",
        install="npm install @opentelemetry/api @opentelemetry/sdk-trace-node @opentelemetry/exporter-trace-otlp-http"
        " @opentelemetry/resources",
        text=f"""{_JS_IMPORTS}
{_JS_PROVIDER}"""
        """
// Your instrumentation emits spans like this one; here it is written by hand.
const said = (role, content) => JSON.stringify([{ role, parts: [{ type: 'text', content }] }])
const span = provider.getTracer('my-agent').startSpan('chat gpt-4.1-mini')
span.setAttributes({
  'gen_ai.operation.name': 'chat',
  'gen_ai.request.model': 'gpt-4.1-mini',
  'gen_ai.input.messages': said('user', 'Where is my order A-17?'),
  'gen_ai.output.messages': said('assistant', 'It comes on Friday.'),
})
span.end()
await provider.shutdown()
""",
    ),
    Snippet(
        key="openinference",
        label="OpenInference",
        language="python",
        file="agent.py",
        install=f"pip install openai openinference-instrumentation-openai {_OTEL}",
        needs=(*_OTEL_MODULES, "openai", "openinference.instrumentation.openai"),
        note="OpenInference has an instrumentation for each framework; take its instrumentor instead of OpenAI's.",
        text=_TRACED,
    ),
    Snippet(
        key="traceloop",
        label="OpenLLMetry (Traceloop)",
        language="python",
        file="agent.py",
        install="pip install openai traceloop-sdk",
        needs=("openai", "traceloop.sdk"),
        note="api_endpoint is the base address; the SDK appends /v1/traces.",
        text=f"""\
from openai import OpenAI
from traceloop.sdk import Traceloop
from traceloop.sdk.decorators import agent

Traceloop.init(
    app_name="my-agent",
    api_endpoint="http://127.0.0.1:8000",
    headers={{"Authorization": "Bearer fw_YOUR_KEY"}},
    disable_batch=True,
)


@agent(name="my-agent")
{_RUN}""",
    ),
    Snippet(
        key="vercel",
        label="Vercel AI SDK",
        language="javascript",
        file="agent.mjs",
        install="npm install ai @ai-sdk/otel @ai-sdk/openai @opentelemetry/api @opentelemetry/sdk-trace-node"
        " @opentelemetry/exporter-trace-otlp-http @opentelemetry/resources",
        note="For version 7. In 5 and 6, leave @ai-sdk/otel and registerTelemetry out and pass"
        " experimental_telemetry: { isEnabled: true, functionId: 'my-agent' } with each call.",
        text="""\
import { openai } from '@ai-sdk/openai'
import { OpenTelemetry } from '@ai-sdk/otel'
"""
        f"""{_JS_IMPORTS}import {{ generateText, registerTelemetry }} from 'ai'

{_JS_PROVIDER}"""
        """\
registerTelemetry(new OpenTelemetry({ usage: true }))

const { text } = await generateText({
  model: openai('gpt-4.1-mini'),
  prompt: 'Where is my order A-17?',
  telemetry: { functionId: 'my-agent' },
})
console.log(text)
await provider.shutdown()
""",
    ),
    Snippet(
        key="pydantic-ai",
        label="PydanticAI, Logfire",
        language="python",
        file="agent.py",
        install="pip install logfire 'pydantic-ai-slim[openai]' opentelemetry-exporter-otlp-proto-http",
        needs=("logfire", "pydantic_ai", *_OTEL_MODULES),
        note="With send_to_logfire=False nothing goes to Logfire; without it, both get the spans.",
        text=f"""\
import logfire
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic_ai import Agent

{_EXPORTER}logfire.configure(
    service_name="my-agent",
    send_to_logfire=False,
    console=False,
    additional_span_processors=[BatchSpanProcessor(exporter)],
)
logfire.instrument_pydantic_ai()

agent = Agent("openai:gpt-4.1-mini", name="my-agent", instructions="Answer in one sentence.")
print(agent.run_sync("Where is my order A-17?").output)
logfire.force_flush()
""",
    ),
    Snippet(
        key="langgraph",
        label="LangGraph, LangSmith",
        language="python",
        file="agent.py",
        install=f"pip install 'langsmith[otel]' langgraph langchain-openai {_OTEL}",
        needs=("langsmith", "langgraph", "langchain_openai", *_OTEL_MODULES),
        note="LANGSMITH_OTEL_ONLY keeps the traces from going to LangSmith as well; some API key has to be set all the"
        " same.",
        text="""\
import os

os.environ["LANGSMITH_TRACING"] = "true"
os.environ["LANGSMITH_OTEL_ENABLED"] = "true"
os.environ["LANGSMITH_OTEL_ONLY"] = "true"
os.environ["LANGSMITH_API_KEY"] = "unused"
os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = "http://127.0.0.1:8000/v1/traces"
os.environ["OTEL_EXPORTER_OTLP_HEADERS"] = "Authorization=Bearer fw_YOUR_KEY"
os.environ["OTEL_SERVICE_NAME"] = "my-agent"

from langchain_core.tracers.langchain import wait_for_all_tracers
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from opentelemetry import trace

model = ChatOpenAI(model="gpt-4.1-mini")
graph = StateGraph(MessagesState)
graph.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_edge(START, "answer")
agent = graph.compile(name="my-agent")
question = {"role": "user", "content": "Where is my order A-17?"}
result = agent.invoke({"messages": [question]})
print(result["messages"][-1].content)
wait_for_all_tracers()
trace.get_tracer_provider().force_flush()
""",
    ),
    Snippet(
        key="langfuse",
        label="Langfuse SDK",
        language="python",
        file="agent.py",
        install="pip install langfuse openai opentelemetry-exporter-otlp-proto-http",
        needs=("langfuse", "openai", *_OTEL_MODULES),
        note="For version 4 of the SDK or newer, which takes an exporter. Its own two keys are asked for and not sent.",
        text=f"""\
from langfuse import Langfuse, observe
from langfuse.openai import OpenAI
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

{_EXPORTER}langfuse = Langfuse(public_key="pk-unused", secret_key="sk-unused", span_exporter=exporter)


@observe(name="my-agent", as_type="agent")
{_RUN}langfuse.flush()
""",
    ),
    Snippet(
        key="mlflow",
        label="MLflow",
        language="python",
        file="agent.py",
        install="pip install mlflow-tracing openai opentelemetry-exporter-otlp-proto-http",
        needs=("mlflow", "openai", *_OTEL_MODULES),
        note="With an OTLP endpoint set, MLflow's tracing sends there instead of to its tracking server.",
        text=f"""\
import os

os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = "http://127.0.0.1:8000/v1/traces"
os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
os.environ["OTEL_EXPORTER_OTLP_HEADERS"] = "Authorization=Bearer fw_YOUR_KEY"
os.environ["OTEL_SERVICE_NAME"] = "my-agent"

import mlflow
from openai import OpenAI

mlflow.openai.autolog()
{_ASK_OPENAI}mlflow.flush_trace_async_logging()
""",
    ),
    Snippet(
        key="collector",
        label="OpenTelemetry Collector",
        language="yaml",
        file="collector.yaml",
        note="Add the exporter and the pipelines to the Collector that you run. It gives up after 5 minutes unless"
        " max_elapsed_time is 0, and its queue is in memory unless you give it a storage.",
        text="""\
receivers:
  otlp:
    protocols:
      http: { endpoint: 0.0.0.0:4318 }
      grpc: { endpoint: 0.0.0.0:4317 }
processors:
  batch: { send_batch_size: 512, send_batch_max_size: 1024, timeout: 2s }
exporters:
  otlphttp/flywheel:
    endpoint: http://127.0.0.1:8000
    headers:
      Authorization: Bearer fw_YOUR_KEY
    compression: gzip
    retry_on_failure: { enabled: true, max_elapsed_time: 0 }
service:
  pipelines:
    traces:
      receivers: [otlp]
      processors: [batch]
      exporters: [otlphttp/flywheel]
    logs:
      receivers: [otlp]
      processors: [batch]
      exporters: [otlphttp/flywheel]
""",
    ),
    Snippet(
        key="curl",
        label="curl",
        language="shell",
        file="send.sh",
        note="One model call as OTLP JSON, with new ids each time. The answer is {} when everything was kept.",
        text="""\
now=$(date +%s)
id() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \\n'; }
curl -sS -i http://127.0.0.1:8000/v1/traces \\
  -H 'Authorization: Bearer fw_YOUR_KEY' \\
  -H 'Content-Type: application/json' \\
  --data-binary @- <<END
{"resourceSpans": [{
  "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my-agent"}}]},
  "scopeSpans": [{"spans": [{
    "traceId": "$(id 16)", "spanId": "$(id 8)", "name": "chat gpt-4.1-mini", "kind": 3,
    "startTimeUnixNano": "${now}000000000", "endTimeUnixNano": "${now}800000000",
    "attributes": [
      {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
      {"key": "gen_ai.request.model", "value": {"stringValue": "gpt-4.1-mini"}},
      {"key": "gen_ai.input.messages", "value": {"stringValue":
        "[{\\"role\\": \\"user\\", \\"content\\": \\"Where is my order A-17?\\"}]"}},
      {"key": "gen_ai.output.messages", "value": {"stringValue":
        "[{\\"role\\": \\"assistant\\", \\"content\\": \\"It comes on Friday.\\"}]"}},
      {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "14"}},
      {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "6"}}
    ]
  }]}]
}]}
END
""",
    ),
    Snippet(
        key="file",
        label="A file",
        language="shell",
        note="What you have already: thirteen formats, detected; or upload it under Trajectories › Import a file.",
        text="""\
curl -sS --data-binary @runs.jsonl \\
  -H 'Authorization: Bearer fw_YOUR_KEY' \\
  'http://127.0.0.1:8000/api/v1/trajectories?format=auto'
# or, on the server itself
.venv/bin/python manage.py import_trajectories runs.jsonl --project YOUR_PROJECT
""",
    ),
)

SNIPPETS = {snippet.key: snippet for snippet in _ALL}
FIRST = "openai"


@dataclass(frozen=True, slots=True)
class Chip:
    """A label to choose from first, and the keys of the snippets under it."""

    label: str
    keys: tuple[str, ...]

    @property
    def holds(self) -> str:
        return " ".join(self.keys)


CHIPS = [
    Chip(label, tuple(snippet.key for snippet in _ALL if snippet.label == label))
    for label in dict.fromkeys(snippet.label for snippet in _ALL)
]


def filled(origin: str, key: str = "", scopes: tuple[str, ...] = (), project: str = PROJECT) -> Iterator[Snippet]:
    """All of them for this server; the key goes into those that its scopes fit."""
    for snippet in _ALL:
        yield snippet.filled(origin, key if snippet.scope in scopes else "", project)
