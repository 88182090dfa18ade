"""PydanticAI watched by Logfire, which sends to another receiver than its own.

`version=1` and `version=2` choose the older shapes of PydanticAI's spans; `conversation` names the session, which only
newer versions can.
"""

import sys

import logfire
import story
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel

logfire.configure(
    send_to_logfire=False,
    service_name=story.AGENT,
    service_version="7",
    console=False,
    environment="test",
    inspect_arguments=False,
)
version = [int(word.split("=")[1]) for word in sys.argv if word.startswith("version=")]
logfire.instrument_pydantic_ai(**({"version": version[0]} if version else {}))
agent = Agent(OpenAIChatModel("tiny-1"), name=story.AGENT, instructions=story.SYSTEM)


@agent.tool_plain
def find_contact(name: str) -> str:
    """Find a person's address"""
    return story.find_contact(name)


@agent.tool_plain
def send_mail(to: str, body: str) -> str:
    """Send a mail"""
    try:
        return story.send_mail(to, body)
    except RuntimeError as error:
        raise ModelRetry(f"Error: {error}") from error


with logfire.span("answer mail for {user}", user=story.USER):
    first = (
        agent.run_sync(story.QUESTIONS[0], conversation_id=story.SESSION)
        if "conversation" in sys.argv
        else agent.run_sync(story.QUESTIONS[0])
    )
    agent.run_sync(story.QUESTIONS[1], message_history=first.all_messages())
logfire.force_flush()
story.made_by("pydantic-ai-slim", "logfire", "opentelemetry-sdk", "openai")
