"""Forms of this room: a new environment, a new version of one."""

import json
from typing import Any

from django import forms

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.core.envs.tool_call import DEFAULT_WEIGHTS, PARTS
from flywheel.core.tools import check_definitions
from flywheel.environments.models import EnvironmentVersion

PART_WORDS = {
    "valid_json": "The answer is one well-formed call",
    "tool": "It names the wanted tool",
    "arguments": "Share of arguments with the wanted value",
    "executes": "A simulated execution takes it",
    "exact": "Tool and every argument right",
}


class WeightsMixin(forms.Form):
    """One number for each part of the verifier."""

    def __init__(self, *args: Any, weights: dict[str, float] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for part in PARTS:
            self.fields[f"weight_{part}"] = forms.FloatField(
                min_value=0, max_value=1000, label=part, help_text=PART_WORDS[part], required=False
            )
            self.initial.setdefault(f"weight_{part}", (weights or DEFAULT_WEIGHTS).get(part, 0))

    @property
    def weight_fields(self) -> list[forms.BoundField]:
        return [self[f"weight_{part}"] for part in PARTS]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        weights = {part: data.get(f"weight_{part}") or 0 for part in PARTS}
        if not self.errors and not any(weights.values()):
            raise forms.ValidationError("At least one weight must be above 0, or every attempt would score the same.")
        data["verifier"] = {"kind": "tool_call", "weights": {p: w for p, w in weights.items() if w}}
        return data


class EnvironmentForm(WeightsMixin):
    """A new environment, with the tools and the prompt of one of the agent's versions."""

    name = forms.SlugField(max_length=100, help_text="Small letters, digits, - and _, such as mail-requests.")
    version = forms.ModelChoiceField(
        Version.objects.none(),
        label="Agent and version",
        help_text="Its tools and system prompt are copied. Failures of this agent become tasks here.",
    )
    held_out_share = forms.FloatField(
        min_value=0.05,
        max_value=0.95,
        initial=0.4,
        help_text="Share of sources (sessions, customers) that are only ever measured. It never changes afterwards.",
    )
    reserved_slices = forms.CharField(
        required=False,
        help_text="Slices, with commas, that are never trained on, such as a wording. It never changes afterwards.",
    )
    description = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 2}))

    def __init__(self, *args: Any, project: Project, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows = Version.objects.filter(agent__project=project).select_related("agent").order_by("agent__name", "-number")
        self.fields["version"].queryset = rows  # type: ignore[attr-defined]

    def clean_name(self) -> str:
        return str(self.cleaned_data["name"]).lower()

    def clean_reserved_slices(self) -> list[str]:
        return [part.strip() for part in self.cleaned_data["reserved_slices"].split(",") if part.strip()]


class VersionForm(WeightsMixin):
    """The next version of an environment: verifier weights, system prompt, tools."""

    system_prompt = forms.CharField(required=False, strip=False, widget=forms.Textarea(attrs={"rows": 4}))
    tools = forms.CharField(widget=forms.Textarea(attrs={"rows": 10, "class": "code", "spellcheck": "false"}))

    def __init__(self, *args: Any, version: EnvironmentVersion | None, **kwargs: Any) -> None:
        config = version.config if version else {}
        kwargs.setdefault(
            "initial",
            {
                "system_prompt": config.get("system_prompt", ""),
                "tools": json.dumps(config.get("tools", []), indent=2, ensure_ascii=False),
            },
        )
        super().__init__(*args, weights=version.verifier.get("weights") if version else None, **kwargs)

    def clean_system_prompt(self) -> str:
        return str(self.cleaned_data["system_prompt"]).replace("\r\n", "\n")

    def clean_tools(self) -> list[Any]:
        try:
            value = json.loads(self.cleaned_data["tools"])
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"not valid JSON: {error}") from None
        if problems := check_definitions(value):
            raise forms.ValidationError(problems)
        if not value:
            raise forms.ValidationError("at least one tool is needed")
        return list(value)
