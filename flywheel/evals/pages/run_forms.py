"""The form of a new eval run, and of what one may take."""

import uuid
from contextlib import suppress
from typing import Any, Self

from django import forms
from django.db.models import F
from django.utils.text import capfirst

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.agents.references import UnknownReference, find_version
from flywheel.agents.version_content import MAX_TOKENS
from flywheel.core.evidence.statistics.eval_scope import SAMPLES
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.evals.models import Engine
from flywheel.evals.runs.run_budget import MOST, UNITS
from flywheel.evals.runs.submission import MAX_SAMPLES, MAX_SEED, RunSettings, usual_samples


class BudgetForm(forms.Form):
    """Limits of a run; fields left empty set no limit."""

    tokens = forms.IntegerField(min_value=1, max_value=MOST, required=False)
    usd = forms.FloatField(min_value=0, max_value=MOST, required=False)
    minutes = forms.FloatField(min_value=0, max_value=MOST, required=False)

    @property
    def budget(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in UNITS if self.cleaned_data[name] is not None}


class EvalForm(BudgetForm):
    key = forms.UUIDField(widget=forms.HiddenInput)
    version = forms.CharField(max_length=120)
    task_set = forms.CharField(max_length=120)
    split = forms.ChoiceField(
        choices=[(Split.HELD_OUT.value, "held-out"), (Split.TRAIN.value, "train")], widget=forms.RadioSelect
    )
    samples = forms.IntegerField(min_value=1, max_value=MAX_SAMPLES)
    seed = forms.IntegerField(min_value=0, max_value=MAX_SEED)
    engine = forms.ChoiceField(choices=Engine.choices, widget=forms.RadioSelect, required=False)
    temperature = forms.FloatField(min_value=0, max_value=5, required=False)
    top_p = forms.FloatField(min_value=0, max_value=1, required=False)
    max_tokens = forms.IntegerField(min_value=1, max_value=MAX_TOKENS, required=False)

    def __init__(self, project: Project, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.project = project
        for name, listed in (("version", "versions"), ("task_set", "task-sets")):
            self.fields[name].widget.attrs |= {"list": listed, "autocomplete": "off", "spellcheck": "false"}

    @classmethod
    def start(cls, project: Project, given: dict[str, str]) -> Self:
        """The form with what the address says; else with what is most often meant: what is live, the usual set; a
        regression suite's runs by itself."""
        live = Version.objects.filter(agent__project=project, agent__live=F("pk")).select_related("agent")[:2]
        version = live[0] if len(live) == 1 else None
        with suppress(UnknownReference):
            version = find_version(project, given["version"]) if given.get("version") else version
        split = given.get("split", Split.HELD_OUT.value)
        first = {
            "key": uuid.uuid4(),
            "version": version or "",
            "task_set": TaskSet.objects.filter(project=project).usual() or "",
            "split": split,
            "samples": usual_samples(version, split) if version else SAMPLES,
            "seed": 1,
            "engine": Engine.ENDPOINT.value,
        }
        return cls(project, initial={**first, **{name: value for name, value in given.items() if name != "key"}})

    def clean_version(self) -> Version:
        try:
            return find_version(self.project, self.cleaned_data["version"])
        except UnknownReference as error:
            raise forms.ValidationError(f"{capfirst(str(error))}.") from error

    def clean_task_set(self) -> TaskSet:
        try:
            return find_task_set(self.project, self.cleaned_data["task_set"])
        except UnknownReference as error:
            raise forms.ValidationError(f"{capfirst(str(error))}.") from error

    @property
    def settings(self) -> RunSettings:
        """The run's settings; of sampling only the overrides."""
        names = ("temperature", "top_p", "max_tokens")
        sampling = {name: self.cleaned_data[name] for name in names if self.cleaned_data[name] is not None}
        same = {name: self.cleaned_data[name] for name in ("samples", "seed", "engine")}
        return RunSettings(**same, sampling=sampling, budget=self.budget)
