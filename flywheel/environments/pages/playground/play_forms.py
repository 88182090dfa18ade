"""Forms for a person's move: words, or the arguments of a tool as its JSON schema describes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.core.validators import MaxLengthValidator

from flywheel.agents.models import Version
from flywheel.core.traces import Message, ToolCall, tooling
from flywheel.edge.schema_form import ObjectForm, field_of, fields_of
from flywheel.environments.playground.episode_moves import LONGEST_MOVE

PREFIX = "argument-"
"""Of the fields of arguments, whose names are the tool's own."""


class MoveForm(ObjectForm):
    """One message of the policy. With a tool it is a call of it, and the text goes with it."""

    text = forms.CharField(
        required=False,
        strip=False,
        max_length=LONGEST_MOVE,
        widget=forms.Textarea(attrs={"rows": 4, "class": "code", "spellcheck": "false"}),
    )

    def __init__(self, *args: Any, tool: Mapping[str, Any] | None, **kwargs: Any) -> None:
        self.tool = tool
        fields = fields_of((tool or {}).get("parameters"))
        for name, described in tooling.properties(tool or {}).items():
            kinds = described.get("type")
            if isinstance(kinds, list) and "string" in kinds:
                fields[name] = field_of(name, {**described, "type": "string"}, is_required=fields[name].required)
        for field in fields.values():
            field.help_text = field.help_text[:300]
            if type(field) is forms.CharField:
                field.validators.append(MaxLengthValidator(LONGEST_MOVE))
                field.widget.attrs["maxlength"] = LONGEST_MOVE
        super().__init__({PREFIX + name: field for name, field in fields.items()}, *args, **kwargs)

    def message(self, call_id: str) -> Message:
        """The move; only after `is_valid`."""
        calls: tuple[ToolCall, ...] = ()
        if self.tool is not None:
            told = {
                name.removeprefix(PREFIX): value
                for name, value in self.value.items()
                if name != "text" and value is not None
            }
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
