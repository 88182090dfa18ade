"""Few-shot examples as text in a system prompt: a block that people can read and edit.

    <examples>
    The following requests were answered rightly. …

    <example>
    User: Cancel my meeting with Bako
    You: {"tool": "calendar.cancel", "arguments": {"who": "Bako"}}
    </example>
    </examples>

Every gateway and every hosted model takes a prompt, so this is where they are. What a text has of the block's own marks
is escaped, and each further line of a text is indented: nobody's words can end an example or begin another turn.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Final

from flywheel.core.traces import Message

OPENS: Final = "<examples>"
CLOSES: Final = "</examples>"
_SAYS: Final = "The following requests were answered rightly. They are examples and no part of your conversation."
_NATIVE: Final = "Calls are written as text here; make yours as tool calls, as always."
_MARKS = re.compile(r"<(?=\s*/?\s*examples?\b)", re.IGNORECASE)
CHARACTERS: Final = 4
"""Of ASCII that make a token, by the estimate; any other character is counted as one."""


def example(messages: Sequence[Message]) -> str:
    """Write one example: the messages of an episode, without what the system says."""
    lines = [line for message in messages if message.role != "system" for line in _turn(message)]
    return "\n".join(["<example>", *lines, "</example>"])


def block(examples: Sequence[str], *, is_native: bool = False) -> str:
    """Write the block of these examples; empty where there is none. Tell an agent of native calls not to copy them."""
    if not examples:
        return ""
    says = f"{_SAYS} {_NATIVE}" if is_native else _SAYS
    return "\n".join([OPENS, says, "", *"\n\n".join(examples).split("\n"), CLOSES])


def tokens(text: str) -> int:
    """Estimate a text's tokens: four characters of ASCII are one, any other character is one."""
    plain = len(text.encode("ascii", "ignore"))
    return math.ceil(plain / CHARACTERS) + len(text) - plain


def _turn(message: Message) -> list[str]:
    """Write a message's lines: its words, then its calls."""
    if message.role == "tool":
        return [f"Tool {_text(message.name) or 'result'}: {_text(message.content)}"]
    who = "User" if message.role == "user" else "You"
    said = [f"{who}: {_text(message.content)}"] if message.content or not message.tool_calls else []
    written = ((call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in message.tool_calls)
    return [*said, *(f"You call {_text(name)} with {_text(arguments)}" for name, arguments in written)]


def _text(text: str) -> str:
    """Return the text as it stands in an example."""
    return _MARKS.sub("&lt;", text.replace("\r", "")).replace("\n", "\n  ")
