"""What a person fills in to make a move: words, or the arguments of a tool as its JSON schema describes them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from flywheel.agents.models import Version
from flywheel.core.digests import read_json
from flywheel.core.traces import Message, ToolCall
from flywheel.environments.playground.episode_moves import LONGEST_MOVE

Tool = Mapping[str, Any]
PREFIX = "argument-"
"""Of the fields of arguments, whose names are the tool's own."""


class MoveForm(forms.Form):
    """One message of the policy. With a tool it is a call of it, and the text goes with it."""

    text = forms.CharField(
        required=False,
        strip=False,
        max_length=LONGEST_MOVE,
        widget=forms.Textarea(attrs={"rows": 4, "class": "code", "spellcheck": "false"}),
    )

    def __init__(self, *args: Any, tool: Tool | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tool = tool
        schema = (tool or {}).get("parameters") or {}
        properties = schema.get("properties") or {}
        self.arguments = dict(properties) if isinstance(properties, Mapping) else {}
        for name, described in self.arguments.items():
            required = name in (schema.get("required") or ())
            self.fields[PREFIX + name] = _field(name, described if isinstance(described, Mapping) else {}, required)

    def message(self, call_id: str) -> Message:
        """The move; only after `is_valid`."""
        calls: tuple[ToolCall, ...] = ()
        if self.tool is not None:
            given = {name: self.cleaned_data[PREFIX + name] for name in self.arguments}
            told = {name: value for name, value in given.items() if value not in (None, "")}
            calls = (ToolCall(call_id, str(self.tool["name"]), told),)
        return Message("assistant", self.cleaned_data["text"], calls)


class AskForm(forms.Form):
    """Which version makes the next move."""

    version = forms.ModelChoiceField(Version.objects.none(), empty_label=None)
    temperature = forms.FloatField(min_value=0, max_value=2, initial=0)

    def __init__(self, *args: Any, versions: Sequence[Version], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["version"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Version.objects.filter(pk__in=[each.pk for each in versions]).select_related("agent")


def find_tool(tools: Sequence[Tool], name: str) -> Tool | None:
    return next((tool for tool in tools if tool.get("name") == name), None)


def _field(name: str, described: Mapping[str, Any], required: bool) -> forms.Field:
    words = str(described.get("description") or "")[:300]
    common: dict[str, Any] = {"label": name, "required": required, "help_text": words}
    choices = described.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(each, str) for each in choices):
        empty = [] if required else [("", "–")]
        return forms.ChoiceField(choices=[*empty, *((each, each) for each in choices)], **common)
    wanted = described.get("type")
    match "string" if isinstance(wanted, list) and "string" in wanted else wanted:
        case "string":
            return forms.CharField(strip=False, max_length=LONGEST_MOVE, **common)
        case "integer":
            return forms.IntegerField(**common)
        case "number":
            return forms.FloatField(**common)
        case "boolean":
            return forms.TypedChoiceField(
                choices=[("", "–"), ("true", "true"), ("false", "false")],
                coerce=lambda value: value == "true",
                empty_value=None,
                **common,
            )
    return Json(widget=forms.Textarea(attrs={"rows": 3, "class": "code", "spellcheck": "false"}), **common)


class Json(forms.CharField):
    """Any JSON value, for what no simpler field can hold."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            read = read_json(text)
            if "\\u0000" in json.dumps(read):
                raise ValueError("it holds a NUL character")
            return read
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"This is not JSON: {str(error)[:200]}.") from None
