"""OpenTelemetry's own instrumentation of the OpenAI client. Its modes are chosen by the environment, see the README."""

import json
from typing import Any

import otel
import story
from openai import OpenAI
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.trace import StatusCode

tracer = otel.start()
OpenAIInstrumentor().instrument()


def tool(name: str, arguments: dict[str, Any], call_id: str) -> str:
    """As the conventions want the application to say it; the instrumentation knows only the client."""
    with tracer.start_as_current_span(f"execute_tool {name}") as span:
        span.set_attributes(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.call.id": call_id,
                "gen_ai.tool.call.arguments": json.dumps(arguments),
            }
        )
        try:
            result = story.FUNCTIONS[name](**arguments)
        except RuntimeError as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR, str(error))
            return f"Error: {error}"
        span.set_attribute("gen_ai.tool.call.result", result)
        return result


with tracer.start_as_current_span(f"invoke_agent {story.AGENT}") as root:
    root.set_attributes(
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": story.AGENT,
            "gen_ai.agent.version": "7",
            "gen_ai.conversation.id": story.SESSION,
        }
    )
    story.tell(OpenAI(), tool, stream_last=True)
otel.stop()
story.made_by("opentelemetry-instrumentation-openai-v2", "opentelemetry-sdk", "openai")
