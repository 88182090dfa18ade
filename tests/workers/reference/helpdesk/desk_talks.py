"""Conversations of the help desk without a server: the customer, the scripted model, and the shop's tools."""

import copy
import json
from typing import Any

from flywheel.core.traces import Message, openai_messages
from workers.programs.agent_playback import PROMPT
from workers.reference.helpdesk.helpdesk_customers import Customer
from workers.reference.helpdesk.helpdesk_shop import TOOLS, Shop
from workers.reference.helpdesk.scripted_model import completion


def talk(customer: Customer, prompt: str = PROMPT) -> list[Message]:
    """The agent's messages, to the end of the conversation."""
    shop, waiting = Shop(copy.deepcopy(customer.state)), [customer.answers] if customer.answers else []
    messages: list[dict[str, Any]] = [{"role": "system", "content": prompt}, {"role": "user", "content": customer.says}]
    tools = openai_messages.chat_tools(TOOLS)
    while True:
        answer = completion({"messages": messages, "tools": tools})["choices"][0]["message"]
        messages.append(answer)
        for call in answer.get("tool_calls", ()):
            function = call["function"]
            result = shop.call(function["name"], json.loads(function["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not answer.get("tool_calls"):
            if not waiting or "?" not in answer["content"]:
                break
            messages.append({"role": "user", "content": waiting.pop()})
    return [message for message in openai_messages.chat_said(messages, TOOLS) if message.role == "assistant"]
