"""LangSmith's SDK in its OpenTelemetry mode: a wrapped OpenAI client and traced functions."""

import os

os.environ |= {
    "LANGSMITH_OTEL_ENABLED": "true",
    "LANGSMITH_OTEL_ONLY": "true",
    "LANGSMITH_TRACING": "true",
    "LANGSMITH_API_KEY": "nothing",
    "LANGSMITH_ENDPOINT": os.environ["HERE"],
    "LANGSMITH_PROJECT": "mail",
}

from typing import Any

import langsmith
import story
from langsmith import traceable
from langsmith.wrappers import wrap_openai
from openai import OpenAI

client = langsmith.Client()


@traceable(run_type="tool", client=client)
def find_contact(name: str) -> str:
    return story.find_contact(name)


@traceable(run_type="tool", client=client)
def send_mail(to: str, body: str) -> str:
    return story.send_mail(to, body)


def call(name: str, arguments: dict[str, Any], call_id: str) -> str:
    try:
        return {"find_contact": find_contact, "send_mail": send_mail}[name](**arguments)
    except RuntimeError as error:
        return f"Error: {error}"


@traceable(
    run_type="chain",
    name=story.AGENT,
    metadata={"session_id": story.SESSION, "user_id": story.USER},
    tags=["golden"],
    client=client,
)
def run(questions: list[str]) -> str:
    story.tell(wrap_openai(OpenAI(), tracing_extra={"client": client}), call, stream_last=True)
    return "done"


run(list(story.QUESTIONS))
client.flush()
from opentelemetry import trace  # noqa: E402

trace.get_tracer_provider().force_flush()  # type: ignore[attr-defined]
story.made_by("langsmith", "opentelemetry-sdk", "openai")
