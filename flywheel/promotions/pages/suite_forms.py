"""Forms for regression suites, which builders fill in."""

from typing import Any

from django import forms

from flywheel.environments.models import Suite, TaskSet
from flywheel.environments.task_sets.suite_definitions import DEFAULT_MARGIN, MAX_SAMPLES

SAFETY_RULES = [rule for rule in Suite.Rule.choices if rule[0] != Suite.Rule.MEAN]


class TaskSetField(forms.ModelChoiceField):  # type: ignore[type-arg]  # Django's class has no arguments at run time
    def label_from_instance(self, obj: Any) -> str:
        count = getattr(obj, "tasks_held_out", 0)
        environment = obj.environment_version.environment
        return f"{obj} · {count} held-out task{'' if count == 1 else 's'} of {environment}"


class SuiteForm(forms.Form):
    """A suite of an agent; a rule is asked of each kind in a field of its own, and the other's is left alone."""

    name = forms.SlugField(max_length=100)
    kind = forms.ChoiceField(choices=Suite.Kind.choices, widget=forms.RadioSelect)
    task_set = TaskSetField(queryset=TaskSet.objects.none(), empty_label=None)
    rule = forms.ChoiceField(choices=SAFETY_RULES, required=False, label="Safety: it passes when")
    measure = forms.ChoiceField(choices=Suite.Measure.choices, required=False, label="Safety: an attempt passes when")
    points = forms.FloatField(
        min_value=0.1, max_value=100, required=False, label="General: success may fall by, points"
    )
    samples = forms.IntegerField(min_value=1, max_value=MAX_SAMPLES, label="Attempts per task")
    reason = forms.CharField(required=False, max_length=2000, label="Reason")
    seen = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    """The version that is to change, 0 for none: a new suite."""

    def __init__(self, sets: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["task_set"]
        assert isinstance(field, TaskSetField)
        field.queryset = sets

    @classmethod
    def start(cls, sets: Any, present: list[Suite], like: Suite | None) -> "SuiteForm":
        """The form filled with a suite that is to change, else with the kind that the agent has none of yet."""
        if like is not None:
            filled = {name: getattr(like, name) for name in ("name", "kind", "task_set", "samples", "measure")}
            filled |= {"rule": like.rule, "points": round(100 * (like.margin or DEFAULT_MARGIN), 6)}
            form = cls(sets, initial=filled | {"seen": like.version})
            form.fields["name"].widget.attrs["readonly"] = True
            return form
        is_guarded = any(suite.kind == Suite.Kind.SAFETY for suite in present)
        kind = Suite.Kind.GENERAL if is_guarded else Suite.Kind.SAFETY
        name = "" if any(suite.name == kind for suite in present) else kind.value
        newest = sets.first()
        return cls(
            sets,
            initial={
                "name": name,
                "kind": kind,
                "task_set": newest.pk if newest else None,
                "points": round(100 * DEFAULT_MARGIN, 6),
                "samples": 1,
                "seen": 0,
            },
        )

    def content(self) -> dict[str, Any]:
        """As `suites.put` takes it."""
        data = self.cleaned_data
        content = {name: data[name] for name in ("name", "kind", "task_set", "samples", "reason", "seen")}
        if data["kind"] == Suite.Kind.GENERAL:
            points = data["points"]
            return content | {"margin": DEFAULT_MARGIN if points is None else points / 100}
        return content | {"rule": data["rule"], "measure": data["measure"]}


class RetireForm(forms.Form):
    version = forms.IntegerField(min_value=1)
    reason = forms.CharField(max_length=2000)
