"""The form that collects rollouts."""

from typing import Any

from django import forms

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.edge.refusals import refusal_shown
from flywheel.evals.pages.run_forms import EvalForm
from flywheel.training.rollouts.teachers import teacher


class CollectForm(EvalForm):
    """An eval's form without the choice of a split, and with an endpoint instead of a version."""

    split = None  # type: ignore[assignment]  # Django's way to take an inherited field away
    version = forms.CharField(max_length=120, required=False)
    base_url = forms.CharField(max_length=500, required=False)
    model = forms.CharField(max_length=200, required=False)
    api_key_env = forms.CharField(max_length=100, required=False)

    def clean_version(self) -> Version | None:  # type: ignore[override]
        return super().clean_version() if self.cleaned_data["version"] else None

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        has_endpoint = any(data.get(name) for name in ("base_url", "model", "api_key_env"))
        if "version" in data and bool(data["version"]) == has_endpoint:
            self.add_error("version", "Name a version, or the endpoint of a teacher: one of them.")
        return data

    def policy(self, actor: Actor) -> Version | None:
        """Who is asked; None with what is wrong noted in the form."""
        version: Version | None = self.cleaned_data["version"]
        if version is None:
            with refusal_shown(self):
                endpoint = {name: self.cleaned_data[name] for name in ("base_url", "model", "api_key_env")}
                version = teacher(task_set=self.cleaned_data["task_set"], actor=actor, **endpoint)
        return version
