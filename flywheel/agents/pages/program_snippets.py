"""Snippets to copy: what a version's own program needs to be evaluated, by the way in which it gets its tasks."""

from flywheel.agents.models import Version

_HTTP = """\
# Answer POST {url}
work = request.json()     # attempt, input, messages, seed, time_limit_s, …
client = OpenAI(base_url=work["base_url"], api_key=work["api_key"])
model = work["model"] or "your-model"
# Tools of the world: GET work["tools_url"], POST work["tools_url"]/NAME,
# both with the header Authorization: Bearer work["api_key"]
return {{"output": answer, "code": "{code}"}}
"""
_COMMAND = """\
# {command}
# Its environment, beside the same as JSON on its input:
OPENAI_BASE_URL  OPENAI_API_KEY  OPENAI_MODEL      # the gateway, for this attempt
FLYWHEEL_ATTEMPT FLYWHEEL_TOOLS_URL FLYWHEEL_SEED FLYWHEEL_TIME_LIMIT_S
# It prints its answer, as text or as {{"output": …}}
"""
_PULL = """\
# Forever, with a project key of scope build:
curl -s {base}/api/v1/attempts/claim -H "Authorization: Bearer $FLYWHEEL_KEY" \\
  -H "Content-Type: application/json" -d '{{"agent": "{agent}", "code": "{code}"}}'
# Of each item: base_url and api_key for the model, tools_url for the tools; then
curl -s $result_url -H "Authorization: Bearer $api_key" -d '{{"output": "…"}}'
"""


def snippet_of(version: Version, base: str) -> str:
    """The snippet for a program, where Flywheel is at this address; empty for any other version."""
    endpoint = version.endpoint
    if not version.is_program:
        return ""
    text = {"http": _HTTP, "command": _COMMAND, "pull": _PULL}[endpoint["way"]]
    return text.format(
        url=endpoint.get("url", ""),
        command=" ".join(endpoint.get("command", ())),
        code=endpoint["code"],
        agent=version.agent.name,
        base=base,
    )
