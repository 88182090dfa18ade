"""Forms of this room: a new environment, a new version of one."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.core.digests import read_json
from flywheel.core.envs import MOST_TOKENS, nemo_gym
from flywheel.core.envs.kinds import Kind
from flywheel.core.envs.replay.model_stand_in import LONGEST_MODEL
from flywheel.core.envs.replay.user_turns import check_script
from flywheel.core.envs.tool_call import DEFAULT_WEIGHTS, PARTS
from flywheel.core.traces.tooling import check_definitions, definitions
from flywheel.core.verifiers import VerifierError
from flywheel.core.verifiers.rubric import is_rubric
from flywheel.environments.models import EnvironmentVersion
from flywheel.environments.pages.world_editor.server_forms import ServerForm, optional_field
from flywheel.environments.pages.world_editor.world_forms import ConfigForm, FunctionsForm
from flywheel.environments.tasks import seeded_tasks

PART_WORDS = {
    "valid_json": "The answer is one well-formed call",
    "tool": "It names the wanted tool",
    "arguments": "Share of arguments with the wanted value",
    "executes": "A simulated execution takes it",
    "exact": "Tool and every argument right",
}
LARGE = 4_000
"""Characters of a setting beyond which it is not written into the page."""
LARGEST_FILE = 64 * 1024**2
"""Bytes."""
FILE, WITHOUT = "file-", "without-"
"""Before the name of a large setting: the fields of its file, and of leaving it out."""


class WeightsMixin(forms.Form):
    """One number for each part of the kind's own verifier; none where a rubric judges, which has an editor."""

    def __init__(self, *args: Any, verifier: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rubric = verifier if verifier and is_rubric(verifier) else None
        weights = (verifier or {}).get("weights") or DEFAULT_WEIGHTS
        for part in () if self.rubric else PARTS:
            self.fields[f"weight_{part}"] = forms.FloatField(
                min_value=0, max_value=1000, label=part, help_text=PART_WORDS[part], required=False
            )
            self.initial.setdefault(f"weight_{part}", weights.get(part, 0))

    @property
    def weight_fields(self) -> list[forms.BoundField]:
        return [] if self.rubric else [self[f"weight_{part}"] for part in PARTS]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.rubric:
            return {**data, "verifier": self.rubric}
        weights = {part: data.get(f"weight_{part}") or 0 for part in PARTS}
        if not self.errors and not any(weights.values()):
            raise forms.ValidationError("At least one weight must be above 0, or every attempt would score the same.")
        data["verifier"] = {"kind": "tool_call", "weights": {p: w for p, w in weights.items() if w}}
        return data


class NamedForm(forms.Form):
    """The part that every new environment has: its name."""

    name = forms.SlugField(max_length=100, help_text="Lower-case letters, digits, - and _, for example mail-requests.")

    def clean_name(self) -> str:
        return str(self.cleaned_data["name"]).lower()


class NewForm(NamedForm):
    """One that has tasks to train on."""

    held_out_share = forms.FloatField(
        min_value=0.05,
        max_value=1,
        initial=0.4,
        help_text="Share of sources (sessions, customers) used only for measuring; 1 for regression suites. Cannot "
        "be changed later.",
    )
    sealed_share = forms.FloatField(
        required=False,
        min_value=0,
        max_value=1,
        initial=0.1,
        help_text="Share of the held-out sources kept for a candidate's final comparison; nobody sees them before. "
        "Leave empty for none, for example for regression suites. Cannot be changed later.",
    )
    reserved_slices = forms.CharField(
        required=False,
        help_text="Slices never used for training, separated by commas. Cannot be changed later.",
    )
    description = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 2}))

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("sealed_share") and data.get("held_out_share") == 1:
            self.add_error("sealed_share", "Leave empty if everything is held out, or suites miss those tasks.")
        return data

    def clean_sealed_share(self) -> float:
        return self.cleaned_data["sealed_share"] or 0.0

    def clean_reserved_slices(self) -> list[str]:
        return [part.strip() for part in self.cleaned_data["reserved_slices"].split(",") if part.strip()]


class EnvironmentForm(WeightsMixin, NewForm):
    """A new environment with the tools and the prompt of one of the agent's versions, whose failures become tasks."""

    version = forms.ModelChoiceField(
        Version.objects.none(),
        label="Agent and version",
        help_text="Its tools and system prompt are copied. Failures of this agent become tasks here.",
    )
    field_order = ("name", "version")

    def __init__(self, *args: Any, project: Project, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows = Version.objects.filter(agent__project=project).select_related("agent").order_by("agent__name", "-number")
        self.fields["version"].queryset = rows  # type: ignore[attr-defined]
        self.has_versions = rows.exists()


class ReplayForm(FunctionsForm, NewForm):
    """A new environment of recorded beginnings, with the tools of a version or of the recorded runs themselves."""

    version = forms.ModelChoiceField(
        Version.objects.none(),
        required=False,
        label="Agent and version",
        empty_label="Any agent, tools from recorded runs",
        help_text="Its tools are copied, and failures of this agent become tasks here. Without one, the newest "
        "recorded runs bring the tools.",
    )
    judged = forms.ChoiceField(
        choices=[("next", "The next action"), ("end", "The end, with recorded results as answers")],
        label="Judged",
        help_text="Judge the agent's next action at the marked step, or the end state when it continues from there.",
    )
    user = forms.ChoiceField(
        choices=[("replay", "The recorded user, while it still fits"), ("script", "A script")],
        required=False,
        label="User",
        help_text="Who answers the agent's messages without a call.",
    )
    script = forms.CharField(
        required=False,
        help_text="JSON: the user's lines, each used once. A line with “after” answers a message that asks for the "
        "same; one without answers anything.",
        widget=forms.Textarea(
            attrs={
                "rows": 4,
                "class": "code",
                "spellcheck": "false",
                "placeholder": '[{"after": "Which day suits you?", "say": "Friday."}]',
            }
        ),
    )
    unknown = forms.ChoiceField(
        required=False,
        choices=[
            ("error", "An error"),
            ("stub", "An empty result of the tool's shape"),
            ("python", "Functions in Python"),
            ("model", "A model"),
            ("server", "Your tool server"),
        ],
        label="Unrecorded calls",
        help_text="How they are answered (and marked) when an attempt is played to the end.",
    )
    simulator_endpoint = forms.ChoiceField(
        required=False,
        choices=[("upstream", "the project's upstream"), ("vllm", "this installation's vLLM")],
        label="Ask",
        help_text="An admin names the upstream under Settings › Gateway.",
    )
    simulator_model = forms.CharField(
        required=False,
        max_length=LONGEST_MODEL,
        label="Model",
        help_text="By the name that the server knows. It is shown the tool, the recorded calls and what the attempt "
        "was told. Proofs measure how often it agrees with recorded results.",
    )
    server_base_url = optional_field("base_url")
    server_protocol = optional_field("protocol")
    server_api_key_env = optional_field("api_key_env")
    server_resets = optional_field("resets")
    field_order = (
        "name", "version", "judged", "user", "script", "unknown", "source", "simulator_endpoint", "simulator_model",
        "server_base_url", "server_protocol", "server_api_key_env", "server_resets",
    )  # fmt: skip

    def __init__(self, *args: Any, project: Project, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["source"].required = False
        rows = Version.objects.filter(agent__project=project).select_related("agent").order_by("agent__name", "-number")
        self.fields["version"].queryset = rows  # type: ignore[attr-defined]

    def clean_script(self) -> Any:
        text = str(self.cleaned_data["script"]).strip()
        try:
            return check_script(_json(text) if text else [])
        except VerifierError as error:
            raise forms.ValidationError(str(error)) from None

    @property
    def config(self) -> dict[str, Any]:
        """The settings but the tools; none for what is the kind's own way, nor for what counts only with another choice
        than the one that was made: such a field is not shown."""
        chosen = {name: self.cleaned_data[name] for name in ("judged", "user", "script", "unknown")}
        if chosen["judged"] != "end":
            chosen |= {"user": "", "unknown": ""}
        if chosen["user"] != "script":
            chosen["script"] = []
        kept = {name: value for name, value in chosen.items() if value and value not in ("replay", "error")}
        if chosen["unknown"] == "model":
            model = self.cleaned_data["simulator_model"]
            kept["simulator"] = {"endpoint": self.cleaned_data["simulator_endpoint"] or "upstream", "model": model}
        if chosen["unknown"] == "server":
            kept["server"] = self._server
        return kept | super().config if chosen["unknown"] == "python" and self.cleaned_data["source"].strip() else kept

    @property
    def _server(self) -> dict[str, Any]:
        sent = {name: self.cleaned_data[f"server_{name}"] for name in ("protocol", "api_key_env", "resets")}
        address = self.cleaned_data["server_base_url"].strip().rstrip("/")
        return {"base_url": address, **{name: value for name, value in sent.items() if value}}


class WorldForm(ConfigForm, NewForm):
    """A new environment whose tools a team writes itself."""

    field_order = ("name", "source", "start", "max_turns", "system_prompt", "token_limit")


class NewServerForm(ServerForm, NewForm):
    """A new environment whose tools are a team's own server's."""

    field_order = (
        "name", "base_url", "protocol", "api_key_env", "resets", "shows_state", "tools", "max_turns", "system_prompt",
        "token_limit",
    )  # fmt: skip


class GeneratedForm(NewForm):
    """A new environment of a kind that makes its own tasks."""

    def __init__(self, *args: Any, kind: Kind, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["reserved_slices"] = ", ".join(kind.reserved)


class AttachForm(NamedForm):
    """Somebody else's NeMo Gym server as an environment."""

    base_url = forms.CharField(
        max_length=500,
        label="Address",
        help_text="Of the resources server, where /seed_session and /verify are. No login and no key is ever sent.",
        widget=forms.TextInput(attrs={"placeholder": "http://gym-1:8000", "inputmode": "url"}),
    )
    tools = forms.CharField(
        required=False,
        strip=True,
        help_text="A row of its data, to read its tools from, or a JSON list of definitions. Leave empty if it has "
        "none.",
        widget=forms.Textarea(attrs={"rows": 8, "class": "code", "spellcheck": "false"}),
    )
    max_turns = forms.IntegerField(
        min_value=1, max_value=100, initial=nemo_gym.MAX_TURNS, help_text="Maximum number of policy turns."
    )
    token_limit = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MOST_TOKENS,
        help_text="Maximum tokens per episode. Leave empty for no limit.",
    )
    description = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 2}))

    def clean_tools(self) -> list[dict[str, Any]]:
        text = str(self.cleaned_data["tools"])
        if not text:
            return []
        try:
            value, _ = json.JSONDecoder().raw_decode(text)  # of several rows, the first
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"not valid JSON: {error}") from None
        if isinstance(value, dict):
            params = value.get("responses_create_params")
            if not isinstance(params, dict):
                raise forms.ValidationError("this row has no responses_create_params, where its tools would be")
            value = params.get("tools") or []
        try:
            return nemo_gym.tools_of(value)
        except VerifierError as error:
            raise forms.ValidationError(str(error)) from None

    @property
    def config(self) -> dict[str, Any]:
        return {
            "base_url": self.cleaned_data["base_url"].strip().rstrip("/"),
            "tools": self.cleaned_data["tools"],
            "max_turns": self.cleaned_data["max_turns"],
        } | ({"token_limit": limit} if (limit := self.cleaned_data["token_limit"]) else {})


class GenerateForm(forms.Form):
    """The number of tasks to make and their seed, with the kind's own options."""

    count = forms.IntegerField(min_value=1, max_value=seeded_tasks.AT_MOST, initial=100, label="Tasks")
    seed = forms.IntegerField(
        min_value=0,
        max_value=seeded_tasks.LARGEST_SEED,
        initial=1,
        help_text="The same seed makes the same tasks; existing ones are not created again.",
    )

    def __init__(self, *args: Any, kind: Kind, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kind = kind
        for name, (default, words) in kind.options.items():
            self.fields[name] = forms.FloatField(initial=default, help_text=words.capitalize() + ".")

    @property
    def options(self) -> dict[str, float]:
        return {name: self.cleaned_data[name] for name in self.kind.options}


class JsonFile(forms.FileField):
    """A file that holds one JSON value; None where none was chosen."""

    def clean(self, data: Any, initial: Any = None) -> Any:
        file = super().clean(data, initial)
        if not file:
            return None
        if file.size > LARGEST_FILE:
            raise forms.ValidationError(f"the file is larger than {LARGEST_FILE // 1024**2} MiB")
        try:
            text = file.read().decode()
        except UnicodeDecodeError:
            raise forms.ValidationError("the file is not UTF-8 text") from None
        return _json(text)


class SettingsForm(forms.Form):
    """The next version of an environment that makes its own tasks: its settings and its verifier's, as JSON.

    A large setting, such as a database, is not written into the page: it stays as it is unless a file replaces it, it
    is left out, or the JSON names it.
    """

    config = forms.CharField(
        label="Settings",
        help_text="JSON, such as max_turns, token_limit and system_prompt. Settings you leave out use this kind's "
        "defaults.",
        widget=forms.Textarea(attrs={"rows": 6, "class": "code", "spellcheck": "false"}),
    )
    verifier = forms.CharField(
        help_text="JSON. Edit the verifier, above, makes it of parts and tries it before it counts.",
        widget=forms.Textarea(attrs={"rows": 3, "class": "code", "spellcheck": "false"}),
    )

    def __init__(self, *args: Any, version: EnvironmentVersion | None, **kwargs: Any) -> None:
        config = version.config if version else {}
        self.kept = {name: value for name, value in config.items() if _is_large(value)}
        if version:
            shown = {name: value for name, value in config.items() if name not in self.kept}
            kwargs.setdefault("initial", {"config": _written(shown), "verifier": _written(version.verifier)})
        super().__init__(*args, **kwargs)
        for name in self.kept:
            accept = forms.FileInput(attrs={"accept": ".json"})
            self.fields[FILE + name] = JsonFile(required=False, label="Replace it by a file", widget=accept)
            self.fields[WITHOUT + name] = forms.BooleanField(required=False, label="Leave it out")

    @property
    def small(self) -> list[forms.BoundField]:
        return [self["config"], self["verifier"]]

    @property
    def large(self) -> list[dict[str, Any]]:
        """The settings that the page does not hold, each with its size and what may become of it."""
        return [
            {
                "name": name,
                "size": len(_written(value).encode()),
                "holds": _holds(value),
                "file": self[FILE + name],
                "without": self[WITHOUT + name],
            }
            for name, value in self.kept.items()
        ]

    @property
    def content(self) -> dict[str, Any]:
        given = self.cleaned_data
        files = {name: given[FILE + name] for name in self.kept if given[FILE + name] is not None}
        kept = {name: value for name, value in self.kept.items() if not given[WITHOUT + name]}
        return {**kept, **files, **given["config"]}

    def clean_config(self) -> dict[str, Any]:
        return _object(self.cleaned_data["config"])

    def clean_verifier(self) -> dict[str, Any]:
        return _object(self.cleaned_data["verifier"])

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        for name in self.kept:
            ways = (data.get(FILE + name) is not None, data.get(WITHOUT + name), name in data.get("config", {}))
            if sum(map(bool, ways)) > 1:
                self.add_error(
                    FILE + name, f"{name}: replace it, leave it out, or name it in the settings: one of them"
                )
        return data


def _written(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _is_large(value: Any) -> bool:
    """A text is not, however long: people write it."""
    return isinstance(value, dict | list) and len(_written(value)) > LARGE


def _holds(value: Mapping[str, Any] | Sequence[Any]) -> str:
    if isinstance(value, Mapping):
        return f"{len(value)} names: {', '.join(list(value)[:6])}{', …' if len(value) > 6 else ''}"
    return f"{len(value)} rows"


def _object(text: str) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        raise forms.ValidationError("expected an object in braces")
    return value


def _json(text: str) -> Any:
    try:
        value = read_json(text)
    except (ValueError, RecursionError) as error:
        raise forms.ValidationError(f"not valid JSON: {error}") from None
    if value is None or "\\u0000" in json.dumps(value):
        raise forms.ValidationError("null is no setting" if value is None else "it holds a NUL character")
    return value


class VersionForm(WeightsMixin):
    """The next version of an environment: verifier weights and tools."""

    tools = forms.CharField(widget=forms.Textarea(attrs={"rows": 10, "class": "code", "spellcheck": "false"}))

    def __init__(self, *args: Any, version: EnvironmentVersion | None, **kwargs: Any) -> None:
        config = version.config if version else {}
        kwargs.setdefault("initial", {"tools": _written(config.get("tools", []))})
        super().__init__(*args, verifier=version.verifier if version else None, **kwargs)

    @property
    def content(self) -> dict[str, Any]:
        return {"tools": self.cleaned_data["tools"]}

    def clean_tools(self) -> list[Any]:
        try:
            value = definitions(json.loads(self.cleaned_data["tools"]))
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"not valid JSON: {error}") from None
        if problems := check_definitions(value):
            raise forms.ValidationError(problems)
        if not value:
            raise forms.ValidationError("at least one tool is needed")
        return list(value)
