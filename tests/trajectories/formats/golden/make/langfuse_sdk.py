"""Langfuse's SDK, which speaks OpenTelemetry since version 3: its OpenAI wrapper and observed functions."""

import os

os.environ |= {"LANGFUSE_HOST": os.environ["HERE"], "LANGFUSE_BASE_URL": os.environ["HERE"]}
os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_TRACING_ENVIRONMENT": "test"}

from typing import Any

import langfuse
import story
from langfuse import get_client, observe, propagate_attributes
from langfuse.openai import OpenAI


@observe(as_type="tool")
def find_contact(name: str) -> str:
    return story.find_contact(name)


@observe(as_type="tool")
def send_mail(to: str, body: str) -> str:
    return story.send_mail(to, body)


def call(name: str, arguments: dict[str, Any], call_id: str) -> str:
    try:
        return {"find_contact": find_contact, "send_mail": send_mail}[name](**arguments)
    except RuntimeError as error:
        return f"Error: {error}"


@observe(name=story.AGENT, as_type="agent")
def run(questions: list[str]) -> str:
    story.tell(OpenAI(), call, stream_last=True)
    return "done"


with propagate_attributes(
    session_id=story.SESSION, user_id=story.USER, tags=["golden"], metadata={"team": "mail"}, version="7"
):
    run(list(story.QUESTIONS))
get_client().flush()
assert langfuse
story.made_by("langfuse", "opentelemetry-sdk", "openai")
