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


def overridden(defaults: Body, asked: Body) -> list[str]:
    """Return what the version says and this caller says otherwise, of either API: `["system", "temperature"]`."""
    told = {name: value for name, value in asked.items() if name in defaults and name not in ("system", "tools")}
    for name in ("max_completion_tokens", "max_output_tokens"):
        if name in asked and "max_tokens" in defaults:
            told["max_tokens"] = asked[name]
    names = {name for name, value in told.items() if value != defaults[name]}
    if defaults.get("system") and any(said != defaults["system"] for said in _instructions(asked)):
        names.add("system")
    brought = [_schema(tool) for tool in defaults.get("tools") or ()]
    given = asked.get("tools", asked.get("functions", brought))
    if brought and (not isinstance(given, list) or [_schema(tool) for tool in given] != brought):
        names.add("tools")
    return sorted(names)


def _instructions(asked: Body) -> list[Any]:
    """Return what the caller says in the stead of the version's prompt."""
    rows = next((rows for key in ("messages", "input") if isinstance(rows := asked.get(key), list)), [])
    said = [row.get("content") for row in rows if _instructs([row])]
    return [*said, *(asked[key] for key in ("instructions", "prompt") if key in asked)]


def _schema(tool: Any) -> Any:
    """A tool without what differs between the APIs."""
    function = tool.get("function", tool) if isinstance(tool, dict) else tool
    if not isinstance(function, dict):
        return function
    return {key: value for key, value in function.items() if key not in ("type", "strict")}


def _settings(defaults: Body) -> Body:
    return {name: value for name, value in defaults.items() if name not in ("system", "tools")}


def _instructs(messages: Any) -> bool:
    """Whether one of the caller's messages is of the system's role."""
    rows = messages if isinstance(messages, list) else []
    return any(row.get("role") in ("system", "developer") for row in rows if isinstance(row, dict))
