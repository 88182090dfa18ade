"""The form of a team's own tool server: where it is, what it can, and the definitions that were read from it."""

import copy
import json
from typing import Any

from django import forms

from flywheel.core.envs.worlds import server_world, stand_ins
from flywheel.core.envs.worlds.server_stand_in import SETTINGS
from flywheel.core.verifiers import VerifierError
from flywheel.edge.schema_form import Json
from flywheel.environments.models import EnvironmentVersion
from flywheel.environments.pages.world_editor.world_forms import CODE, WorldSettingsForm, lines_of

LONGEST_TOOLS = 512 * 1024


class ServerForm(WorldSettingsForm):
    """A tool server's settings; its definitions come from *Try*."""

    base_url = forms.CharField(
        max_length=server_world.LONGEST_ADDRESS,
        label="Address",
        help_text="Use a test copy: the agent's calls really run there. Over MCP the address of the endpoint "
        "itself, such as http://tools:8000/mcp.",
        widget=forms.TextInput(attrs={"placeholder": "http://tools:8000", "inputmode": "url"}),
    )
    protocol = forms.ChoiceField(
        choices=[("http", "HTTP: GET /tools, POST /tools/NAME"), ("mcp", "MCP over streamable HTTP")], initial="http"
    )
    api_key_env = forms.CharField(
        required=False,
        max_length=100,
        label="Key",
        help_text="The name of a key that is bound to this server, such as TOOLS_API_KEY (Settings › Models), sent as "
        "a bearer token. Empty for none.",
    )
    resets = forms.BooleanField(
        required=False,
        label="It resets for each attempt",
        help_text='POST /reset {"seed", "task"} answers {"session"}, which the header Flywheel-Session then names.',
    )
    shows_state = forms.BooleanField(
        required=False,
        label="It shows its state",
        help_text="GET /state answers the session's state as JSON, by which attempts can be judged.",
    )
    tools = Json(
        required=False,
        max_length=LONGEST_TOOLS,
        label="Definitions",
        help_text="Try reads them from the server. They are frozen: if the server's change later, attempts are "
        'unscored. Mark a tool with "x-unsafe": true if it does harm when unrequested, and with "x-outward": true if '
        "its effects cannot be undone.",
        widget=forms.Textarea(attrs={**CODE, "rows": 8}),
    )

    def __init__(self, *args: Any, version: EnvironmentVersion | None = None, **kwargs: Any) -> None:
        if version is not None:
            kwargs.setdefault("initial", version.config | {"tools": written(version.config["tools"])})
        super().__init__(*args, **kwargs)

    @property
    def config(self) -> dict[str, Any]:
        kept = {name: self.cleaned_data[name] for name in server_world.SETTINGS if self.cleaned_data[name]}
        return {**kept, "base_url": kept["base_url"].rstrip("/")}

    @property
    def tool_lines(self) -> list[dict[str, Any]]:
        try:
            return lines_of(server_world.tools_of(json.loads(self["tools"].value() or "[]")))
        except (VerifierError, ValueError, RecursionError):
            return []


class StandInForm(ServerForm):
    """A server that answers what was never recorded in a replay, which has turns and a prompt of its own."""

    max_turns = system_prompt = token_limit = shows_state = None  # type: ignore[assignment]
    resets = forms.BooleanField(
        required=False,
        label="It resets for each attempt",
        help_text='POST /reset {"seed", "task"} answers {"session"}, which the header Flywheel-Session then names. '
        "Recorded calls are carried out there too, so that it is where the recorded run was.",
    )

    def __init__(self, *args: Any, version: EnvironmentVersion | None = None, **kwargs: Any) -> None:
        if version is not None:
            server = dict(stand_ins.server_settings(version.config))
            kwargs.setdefault("initial", server | {"tools": written(server.get("tools") or version.config["tools"])})
        super().__init__(*args, **kwargs)

    @property
    def config(self) -> dict[str, Any]:
        """Settings of the server alone, as a trial takes them."""
        kept = {name: self.cleaned_data[name] for name in SETTINGS if self.cleaned_data[name]}
        return {**kept, "base_url": kept["base_url"].rstrip("/")}

    def refuse(self, error: Exception) -> None:
        super().refuse(ValueError(str(error).removeprefix("server.")))


def optional_field(name: str) -> forms.Field:
    """The field of a stand-in's settings for a form in which something else may stand in."""
    field = copy.deepcopy(StandInForm.base_fields[name])
    field.label, field.required = field.label or name.capitalize(), False
    return field


def written(tools: Any) -> str:
    """Definitions as they stand in the form."""
    return json.dumps(tools, indent=2, ensure_ascii=False)
