"""Forms of worlds of a team's own Python: the source and its settings, a trial, a task, what is right in a play."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django import forms

from flywheel.core.envs import MOST_TOKENS
from flywheel.core.envs.worlds import own_world, tool_functions
from flywheel.core.envs.worlds.tool_stubs import stubs
from flywheel.core.traces import tooling
from flywheel.core.traces.outward_acts import OUTWARD
from flywheel.core.verifiers import VerifierError
from flywheel.edge.schema_form import Json
from flywheel.environments.models import EnvironmentVersion, Play
from flywheel.environments.playground import played_targets
from flywheel.environments.tasks.own_tasks import LONGEST_REQUEST

STARTER = Path(tool_functions.__file__).with_name("example_shop.py").read_text(encoding="utf-8")
CODE = {"class": "code", "spellcheck": "false", "autocapitalize": "off", "autocomplete": "off"}


class DraftForm(forms.Form):
    """A draft of tools that can be tried before it is saved."""

    @property
    def config(self) -> dict[str, Any]:
        """The settings; only after `is_valid`."""
        raise NotImplementedError

    @property
    def tool_lines(self) -> list[dict[str, Any]]:
        """The tools of what stands in the form, as a page shows them."""
        raise NotImplementedError

    def refuse(self, error: Exception) -> None:
        """Show what is wrong at the setting that it names, else above all."""
        name, found, words = str(error).partition(": ")
        field = name.replace(".", "_")
        self.add_error(field if found and field in self.fields else None, words if found else name)


class WorldSettingsForm(DraftForm):
    """The settings of every world of a team's own."""

    system_prompt = forms.CharField(
        required=False,
        label="Rules of this world",
        help_text="Added after the version's prompt. Leave empty for none.",
        widget=forms.Textarea(attrs={"rows": 2}),
    )
    max_turns = forms.IntegerField(
        min_value=1,
        max_value=own_world.MOST_TURNS,
        initial=own_world.MAX_TURNS,
        label="Turns",
        help_text="Maximum number of agent turns.",
    )
    token_limit = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MOST_TOKENS,
        label="Tokens",
        help_text="Maximum tokens per attempt. Leave empty for no limit.",
    )
    compare = forms.ChoiceField(
        required=False,
        choices=[
            ("spaces", "whatever their extra spaces"),
            ("case", "whatever their extra spaces and capitals"),
            ("exact", "letter by letter"),
        ],
        label="Texts of the state are the same",
        help_text="Any other difference that was not requested counts as a side effect.",
    )


class FunctionsForm(DraftForm):
    """The Python of a replay's tools, which answers what was never recorded."""

    source = forms.CharField(
        strip=False,
        label="Functions, in Python",
        help_text="Each function answers for the tool of its name. Delete those that are not to answer: their tools "
        "get the environment's error. reset(seed) returns the state at the beginning, with reset(db, seed) it is an "
        "SQLite database; what a task says exists takes the place of the part of that name.",
        widget=forms.Textarea(attrs={**CODE, "rows": 26, "wrap": "off"}),
    )

    def __init__(self, *args: Any, version: EnvironmentVersion | None = None, **kwargs: Any) -> None:
        if version is not None:
            source = version.config.get("source") or stubs(str(version.environment), version.config.get("tools", []))
            kwargs.setdefault("initial", {"source": source})
        super().__init__(*args, **kwargs)

    @property
    def config(self) -> dict[str, Any]:
        return {"source": self.cleaned_data["source"].replace("\r\n", "\n")}

    @property
    def tool_lines(self) -> list[dict[str, Any]]:
        return tool_lines(self["source"].value() or "")


class ConfigForm(FunctionsForm, WorldSettingsForm):
    """A world's settings, the Python of its tools among them."""

    source = forms.CharField(
        strip=False,
        label="Tools, in Python",
        help_text="Each function is a tool: its hints are the arguments, its docstring is what the agent reads. "
        "reset(seed) returns the state at the beginning; with reset(db, seed) it is an SQLite database.",
        widget=forms.Textarea(attrs={**CODE, "rows": 26, "wrap": "off"}),
        initial=STARTER,
    )
    start = forms.ChoiceField(
        choices=[("extend", "is added to what reset returns"), ("replace", "replaces what reset returns")],
        label="A task's own state",
        help_text="Beside it: each of its parts takes the place of the part of that name.",
    )

    field_order: Sequence[str] = ("source", "start", "system_prompt", "max_turns", "token_limit", "compare")

    def __init__(self, *args: Any, version: EnvironmentVersion | None = None, **kwargs: Any) -> None:
        if version is not None:
            kwargs.setdefault("initial", version.config)
        super().__init__(*args, **kwargs)

    @property
    def config(self) -> dict[str, Any]:
        kept = {name: self.cleaned_data[name] for name in own_world.SETTINGS if self.cleaned_data[name]}
        return kept | super().config


class CallForm(forms.Form):
    """The beginning and the call of a trial."""

    seed = forms.IntegerField(min_value=0, max_value=own_world.LARGEST_SEED, initial=0)
    tool = forms.CharField(required=False, max_length=200)
    arguments = Json(required=False, max_length=20_000)

    def clean_arguments(self) -> dict[str, Any]:
        value = self.cleaned_data["arguments"]
        if not isinstance(value, dict | None):
            raise forms.ValidationError('expected an object in braces, such as {"order_id": "1001"}')
        return value or {}


class TaskForm(forms.Form):
    """A task of a world, with or without what is wanted."""

    prompt = forms.CharField(
        max_length=LONGEST_REQUEST,
        label="Request",
        help_text="The user's request.",
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    seed = forms.IntegerField(
        min_value=0,
        max_value=own_world.LARGEST_SEED,
        initial=0,
        help_text="The seed for reset, so that every attempt at this task starts the same.",
    )
    state = Json(
        required=False,
        label="Own state",
        help_text="Additional state for this task, as JSON. Leave empty for none.",
        widget=forms.Textarea(attrs={**CODE, "rows": 4}),
    )
    target = Json(
        required=False,
        label="Wanted",
        help_text='Leave it empty and play the task: "Mark as correct" then fills it in. Or write it as JSON: '
        '{"wanted": [{"type": "state", "paths": {"/orders/1001/status": "refunded"}}], "solution": [calls]}.',
        widget=forms.Textarea(attrs={**CODE, "rows": 4}),
    )
    group = forms.CharField(
        required=False,
        max_length=200,
        help_text="Tasks of one group share a split. Leave empty to treat each task separately.",
    )
    slice = forms.CharField(required=False, max_length=100, help_text="Results are also reported by this.")

    def clean_target(self) -> dict[str, Any] | None:
        value = self.cleaned_data["target"]
        if not isinstance(value, dict | None):
            raise forms.ValidationError('expected an object in braces, such as {"wanted": […]}')
        return value

    @property
    def beginning(self) -> dict[str, Any]:
        """The task's state; only after `is_valid`."""
        own = self.cleaned_data["state"]
        return {"seed": self.cleaned_data["seed"]} | ({} if own is None else {"state": own})


class RightForm(forms.Form):
    """The parts of a play that are wanted."""

    paths = forms.MultipleChoiceField(
        required=False, label="Changes", widget=forms.CheckboxSelectMultiple, help_text="The required end state."
    )
    rest_same = forms.BooleanField(required=False, initial=True, label="Nothing else may change")
    calls_wanted = forms.BooleanField(required=False, label="Exactly these calls of these tools")
    words = forms.CharField(
        required=False,
        max_length=LONGEST_REQUEST,
        help_text="An answer with this content. Leave empty to accept any.",
        widget=forms.Textarea(attrs={"rows": 2}),
    )

    def __init__(self, *args: Any, play: Play, **kwargs: Any) -> None:
        changes = played_targets.changed(play)
        kwargs.setdefault(
            "initial",
            {
                "paths": [each.path for each in changes],
                "rest_same": True,
                "words": "" if changes else played_targets.words_of(play),
            },
        )
        super().__init__(*args, **kwargs)
        field = self.fields["paths"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(each.path, each.line) for each in changes]


def tool_lines(source: str) -> list[dict[str, Any]]:
    """The tools that a source defines, as a page shows them; none for one that cannot be read."""
    try:
        return lines_of(tool_functions.read(source.replace("\r\n", "\n")).tools)
    except VerifierError:
        return []


def lines_of(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Definitions as a page shows them."""
    found = []
    for tool in tools:
        parameters = tool.get("parameters")
        required = parameters.get("required", ()) if isinstance(parameters, Mapping) else ()
        arguments = [
            {
                "name": name,
                "type": _type_words(schema),
                "description": schema.get("description", ""),
                "is_optional": name not in required,
            }
            for name, schema in tooling.properties(tool).items()
        ]
        about = {"name": tool["name"], "description": tool.get("description", ""), "arguments": arguments}
        found.append({**about, "is_unsafe": bool(tool.get("x-unsafe")), "is_outward": bool(tool.get(OUTWARD))})
    return found


def _type_words(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "anything"
    if isinstance(schema.get("enum"), list):
        return "one of " + ", ".join(str(each) for each in schema["enum"])
    if isinstance(schema.get("anyOf"), list):
        return " or ".join(_type_words(each) for each in schema["anyOf"])
    inner = f" of {_type_words(schema['items'])}" if "items" in schema else ""
    return str(schema.get("type", "anything")) + inner
