"""Logfire's own instrumentation of the OpenAI client, with spans around the tools."""

from typing import Any

import logfire
import story
from openai import OpenAI

logfire.configure(
    send_to_logfire=False, service_name=story.AGENT, service_version="7", console=False, inspect_arguments=False
)
client = OpenAI()
logfire.instrument_openai(client)


def call(name: str, arguments: dict[str, Any], call_id: str) -> str:
    try:
        with logfire.span("running tool: {tool}", tool=name, **{"gen_ai.tool.name": name, "arguments": arguments}):
            return story.FUNCTIONS[name](**arguments)
    except RuntimeError as error:
        return f"Error: {error}"


with logfire.span("answer mail", **{"gen_ai.agent.name": story.AGENT, "gen_ai.conversation.id": story.SESSION}):
    story.tell(client, call, stream_last=True)
logfire.force_flush()
story.made_by("logfire", "opentelemetry-sdk", "openai")
