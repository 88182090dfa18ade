"""MLflow's tracing, sent by OTLP: its autologging of the OpenAI client and traced functions."""

from typing import Any

import mlflow
import story
from mlflow.entities import SpanType
from openai import OpenAI

mlflow.openai.autolog()


def call(name: str, arguments: dict[str, Any], call_id: str) -> str:
    try:
        return mlflow.trace(story.FUNCTIONS[name], name=name, span_type=SpanType.TOOL)(**arguments)
    except RuntimeError as error:
        return f"Error: {error}"


@mlflow.trace(name=story.AGENT, span_type=SpanType.AGENT)
def run(questions: list[str]) -> str:
    mlflow.update_current_trace(tags={"team": "mail"})
    mlflow.get_current_active_span().set_attributes({"session.id": story.SESSION, "user.id": story.USER})
    story.tell(OpenAI(), call, stream_last=True)
    return "done"


run(list(story.QUESTIONS))
mlflow.flush_trace_async_logging()
story.made_by("mlflow-tracing", "opentelemetry-sdk", "openai")
