"""Traceloop's SDK (OpenLLMetry): its instrumentation of the OpenAI client and its decorators."""

import sys
from typing import Any

import story
from openai import OpenAI
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from traceloop.sdk import Traceloop
from traceloop.sdk.decorators import agent, tool, workflow

Traceloop.init(
    app_name=story.AGENT,
    telemetry_enabled=False,
    processor=SimpleSpanProcessor(OTLPSpanExporter()),
    resource_attributes={"service.version": "7"},
)


@tool(name="find_contact")
def find_contact(name: str) -> str:
    return story.find_contact(name)


@tool(name="send_mail")
def send_mail(to: str, body: str) -> str:
    return story.send_mail(to, body)


def call(name: str, arguments: dict[str, Any], call_id: str) -> str:
    try:
        return {"find_contact": find_contact, "send_mail": send_mail}[name](**arguments)
    except RuntimeError as error:
        return f"Error: {error}"


@agent(name=story.AGENT)
def run(questions: list[str]) -> str:
    if "responses" in sys.argv:
        story.respond(OpenAI(), call)
    else:
        story.tell(OpenAI(), call, stream_last=True)
    return "done"


@workflow(name="answer_mail")
def answer(questions: list[str]) -> str:
    Traceloop.set_association_properties({"session_id": story.SESSION, "user_id": story.USER})
    return run(questions)


answer(list(story.QUESTIONS))
story.made_by("traceloop-sdk", "opentelemetry-instrumentation-openai", "openai")
