"""Forms for approvers."""

from typing import Any

from django import forms

from flywheel.core.evidence.gate.decision import LIMITS, Limit, Policy


class DecisionForm(forms.Form):
    """Approve or reject a candidate."""

    ONCE, STEPS = "once", "steps"

    generation = forms.IntegerField(widget=forms.HiddenInput, min_value=0)
    how = forms.ChoiceField(
        choices=[(ONCE, "At once, for all sessions"), (STEPS, "By steps")],
        required=False,
        widget=forms.RadioSelect,
        label="Release",
    )
    again = forms.IntegerField(required=False, min_value=1)
    """The last ramp of the version, ticked where that was taken back or stopped."""
    reason = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 2, "maxlength": 2000}), max_length=2000, help_text="Recorded permanently."
    )
    override = forms.BooleanField(required=False, label="Override the gate (will be flagged)")

    @property
    def is_by_steps(self) -> bool:
        return bool(self["how"].value() == self.STEPS)

    @property
    def decision(self) -> dict[str, Any]:
        """The cleaned fields that both ways of approving take."""
        return {name: value for name, value in self.cleaned_data.items() if name != "how"}


class RollBackForm(forms.Form):
    """Make an earlier version live again."""

    generation = forms.IntegerField(widget=forms.HiddenInput, min_value=0)
    version = forms.IntegerField(widget=forms.HiddenInput, min_value=1)
    reason = forms.CharField(max_length=2000, required=False)


class PolicyForm(forms.Form):
    """The gate's rules, a field for each limit that has a label; an empty margin is not gated. Shares are entered in
    percent points."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields.update({name: _policy_field(limit) for name, limit in LIMITS.items() if limit.label})
        self.fields["strict"] = forms.BooleanField(
            required=False,
            label="Also stop the candidate if a guard cannot tell",
            help_text="Otherwise only guards shown to be worse stop it. Few task sets are large enough for this "
            "option.",
        )

        self.fields["watch_rolls_back"] = forms.BooleanField(
            required=False,
            label="Roll back by itself when unsafe actions or server errors exceed what a promotion claims",
            help_text="Otherwise the notice only says so. Categories that come back never roll anything back.",
        )

    @classmethod
    def of(cls, rules: dict[str, Any]) -> "PolicyForm":
        """The form filled with a policy's rules."""
        shown = {name: _entered(LIMITS[name], value) for name, value in rules.items() if name in LIMITS}
        return cls(
            initial=shown
            | {"strict": rules.get("strict", False), "watch_rolls_back": rules.get("watch_rolls_back", True)}
        )

    def rules(self, before: dict[str, Any]) -> dict[str, Any]:
        """The rules that the form says, on top of those that it does not show. Raises ValueError."""
        changes = {
            name: value / 100 if value is not None and name in LIMITS and LIMITS[name].unit else value
            for name, value in self.cleaned_data.items()
        }
        return Policy.from_dict({**before, **changes}).to_dict()


def _policy_field(limit: Limit) -> forms.Field:
    if not limit.unit:
        return forms.IntegerField(label=limit.label, min_value=int(limit.least), max_value=int(limit.most))
    return forms.FloatField(
        label=f"{limit.label}, {limit.unit}",
        required=not limit.is_optional,
        min_value=100 * limit.least,
        max_value=100 * limit.most,
    )


def _entered(limit: Limit, value: Any) -> Any:
    return round(value * 100, 6) if value is not None and limit.unit else value
