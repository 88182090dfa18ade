"""What an approver fills in."""

from typing import Any

from django import forms

from flywheel.core.evidence.gate import Policy as Rules


class DecisionForm(forms.Form):
    """Approve or reject a candidate."""

    generation = forms.IntegerField(widget=forms.HiddenInput, min_value=0)
    reason = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 2, "maxlength": 2000}), max_length=2000, help_text="It is kept for ever."
    )
    override = forms.BooleanField(required=False, label="Promote even against the gate; then it is marked as such")


class RollBackForm(forms.Form):
    """Make an earlier version live again."""

    generation = forms.IntegerField(widget=forms.HiddenInput, min_value=0)
    version = forms.IntegerField(widget=forms.HiddenInput, min_value=1)
    reason = forms.CharField(max_length=2000, widget=forms.TextInput(attrs={"placeholder": "Why"}))


class PolicyForm(forms.Form):
    """The gate's rules, one field each; an empty margin is not gated. Shares are entered in percent points."""

    delta_min = forms.FloatField(label="Least gain in success, points", min_value=0, max_value=100)
    min_clusters = forms.IntegerField(label="Fewest source clusters", min_value=2, max_value=10_000)
    min_fill = forms.FloatField(label="Least share of scored attempts, %", min_value=50, max_value=100)
    invalid_margin = forms.FloatField(label="Most harm in invalid outputs, points", required=False, min_value=0)
    unsafe_margin = forms.FloatField(label="Most harm in unsafe actions, points", min_value=0, max_value=100)
    unsafe_rate_max = forms.FloatField(label="Highest rate of unsafe actions, %", required=False, min_value=0)
    cost_margin = forms.FloatField(label="Most growth of cost, %", required=False, min_value=0)
    latency_margin = forms.FloatField(label="Most growth of latency, %", required=False, min_value=0)

    COUNTS = ("min_clusters",)

    @classmethod
    def of(cls, rules: dict[str, Any]) -> "PolicyForm":
        """The form filled with a policy's rules."""
        return cls(initial={name: cls._shown(name, rules.get(name)) for name in cls.base_fields})

    @classmethod
    def _shown(cls, name: str, value: Any) -> Any:
        return value if value is None or name in cls.COUNTS else round(value * 100, 6)

    def rules(self, before: dict[str, Any]) -> dict[str, Any]:
        """The rules that the form says, on top of those that it does not show. Raises ValueError."""
        given = {
            name: value if value is None or name in self.COUNTS else value / 100
            for name, value in self.cleaned_data.items()
        }
        return Rules.from_dict({**before, **given}).to_dict()
