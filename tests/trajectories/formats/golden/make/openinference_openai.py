"""Arize's OpenInference instrumentation of the OpenAI client, with AGENT and TOOL spans around it."""

import sys
from typing import Any

import otel
import story
from openai import OpenAI
from openinference.instrumentation import OITracer, TraceConfig, using_attributes
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.trace import Status, StatusCode

tracer = OITracer(otel.start(), TraceConfig())
OpenAIInstrumentor().instrument()


def tool(name: str, arguments: dict[str, Any], call_id: str) -> str:
    with tracer.start_as_current_span(name, openinference_span_kind="tool") as span:
        span.set_tool(name=name, parameters=story.TOOLS[0]["function"]["parameters"])
        span.set_input(arguments)
        span.set_attribute("tool_call.id", call_id)
        try:
            result = story.FUNCTIONS[name](**arguments)
        except RuntimeError as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
            return f"Error: {error}"
        span.set_output(result)
        span.set_status(Status(StatusCode.OK))
        return result


with (
    using_attributes(session_id=story.SESSION, user_id=story.USER, metadata={"team": "mail"}, tags=["golden"]),
    tracer.start_as_current_span("run", openinference_span_kind="agent") as root,
):
    root.set_attribute("agent.name", story.AGENT)
    root.set_input(story.QUESTIONS[0])
    if "responses" in sys.argv:
        story.respond(OpenAI(), tool)
    else:
        story.tell(OpenAI(), tool, stream_last=True)
    root.set_output("done")
otel.stop()
story.made_by("openinference-instrumentation-openai", "opentelemetry-sdk", "openai")
