"""A version's prompt, tools and sampling, filled into a request that does not say its own: of either API."""

from typing import Any

Body = dict[str, Any]


def chat(defaults: Body, asked: Body) -> Body:
    """The request with the version's prompt, tools and sampling."""
    settings = _settings(defaults)
    if "max_completion_tokens" in asked:
        settings.pop("max_tokens", None)
    merged = {**settings, **asked}
    messages = asked.get("messages")
    if isinstance(messages, list) and (prompt := defaults.get("system")) and not _instructs(messages):
        merged["messages"] = [{"role": "system", "content": prompt}, *messages]
    if "tools" not in asked and "functions" not in asked and (tools := defaults.get("tools")):
        merged["tools"] = tools
    return merged


def responses(defaults: Body, asked: Body) -> Body:
    """The same in the words of the Responses API. Its instructions do not carry over from one response to the next, so
    they are filled in each time."""
    settings = _settings(defaults)
    if "max_tokens" in settings:
        settings["max_output_tokens"] = settings.pop("max_tokens")
    merged = {**settings, **asked}
    is_instructed = asked.keys() & {"instructions", "prompt"} or _instructs(asked.get("input"))
    if (prompt := defaults.get("system")) and not is_instructed:
        merged["instructions"] = prompt
    if "tools" not in asked and (tools := defaults.get("tools")):
        # Strict is the default here, and would change the schemas; it is not in chat completions.
        merged["tools"] = [{"type": "function", "strict": False, **tool["function"]} for tool in tools]
    return merged


FILL = {"chat/completions": chat, "responses": responses}
"""By the path that a call goes to, below the server's address."""


def _settings(defaults: Body) -> Body:
    return {name: value for name, value in defaults.items() if name not in ("system", "tools")}


def _instructs(messages: Any) -> bool:
    """Whether one of the caller's messages is of the system's role."""
    rows = messages if isinstance(messages, list) else []
    return any(row.get("role") in ("system", "developer") for row in rows if isinstance(row, dict))
