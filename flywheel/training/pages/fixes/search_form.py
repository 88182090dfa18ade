"""The form of a search for a prompt: which model proposes, and how much may be tried."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from django import forms
from django.utils.text import capfirst

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.edge.numbers import form_key
from flywheel.edge.refusals import Refused
from flywheel.evals.runs.submission import MAX_SAMPLES, MAX_SEED
from flywheel.training.fixes.draft_search import (
    MOST_ATTEMPTS,
    MOST_PROPOSALS,
    MOST_TASKS,
    SearchPlan,
    SearchRequest,
    plan_of,
)
from flywheel.training.models import PromptSearch
from flywheel.training.pages.fixes.fix_forms import usual_parent, usual_task_set

SERVER = ("base_url", "model", "api_key_env")
BUDGET = ("proposals", "tasks", "attempts", "samples", "seed")


class SearchForm(forms.Form):
    """The model that proposes, and the budget; `parent` and `task_set` are chosen above it."""

    base_url = forms.CharField(
        max_length=500,
        label="Address",
        help_text="Of any OpenAI-compatible server, such as https://api.openai.com/v1; the worker must reach it.",
        widget=forms.TextInput(attrs={"list": "servers", "inputmode": "url"}),
    )
    model = forms.CharField(max_length=300, help_text="As the server calls it. A strong one writes better prompts.")
    api_key_env = forms.CharField(
        max_length=100,
        required=False,
        label="Key",
        help_text="The name of a key that is bound to this server, never the key itself. Empty for none.",
        widget=forms.TextInput(attrs={"list": "keys"}),
    )
    proposals = forms.IntegerField(
        min_value=1, max_value=MOST_PROPOSALS, initial=10, help_text="At most; each is one answer of the model."
    )
    tasks = forms.IntegerField(
        min_value=1,
        max_value=MOST_TASKS,
        initial=30,
        label="Training tasks",
        help_text="At most; those of this category first.",
    )
    attempts = forms.IntegerField(
        min_value=1,
        max_value=MOST_ATTEMPTS,
        required=False,
        help_text="At most, with the trial afterwards. Empty for as many as the proposals may need.",
    )
    samples = forms.IntegerField(
        min_value=1,
        max_value=MAX_SAMPLES,
        initial=4,
        label="Samples per task (k)",
        help_text="In the trial afterwards; the search itself attempts each task once with each prompt.",
    )
    seed = forms.IntegerField(min_value=0, max_value=MAX_SEED, initial=1)

    problem = ""
    """Why there is no plan, once it was asked for and no field says so."""

    def __init__(self, project: Project, bucket: str, asked: Mapping[str, Any], *, is_sent: bool) -> None:
        """A form that was sent has `asked`; another one begins with what is most often meant.

        Raises Missing for a version or set that is none of the project's.
        """
        self.project, self.bucket = project, bucket
        self.task_set = usual_task_set(project, bucket, str(asked.get("task_set", "")))
        self.parent = usual_parent(project, self.task_set, str(asked.get("version", "")))
        self.key = form_key(str(asked.get("key", "")))
        super().__init__(asked if is_sent else None, initial=_usual_server(project, self.parent))

    @property
    def server(self) -> list[forms.BoundField]:
        return [self[name] for name in SERVER]

    @property
    def budget(self) -> list[forms.BoundField]:
        return [self[name] for name in BUDGET if name != "seed"]

    def request(self) -> SearchRequest | None:
        """Return the search that is asked for; None while a field of the form is wrong."""
        if not self.is_valid():
            return None
        asked = self.cleaned_data
        return self._search_of(asked, {name: asked[name] for name in SERVER if asked[name]})

    @cached_property
    def plan(self) -> SearchPlan | None:
        """Work out the attempts of so much; None while a field says that it is wrong, or `problem` does."""
        asked = {name: self[name].initial for name in BUDGET}
        if self.is_bound:
            self.is_valid()
            asked = {name: self.cleaned_data[name] for name in BUDGET if name in self.cleaned_data}
        try:
            wanted = self._search_of(asked, {}) if len(asked) == len(BUDGET) else None
            return plan_of(wanted) if wanted else None
        except Refused as error:
            self.problem = capfirst(str(error))
            return None

    def _search_of(self, asked: Mapping[str, Any], endpoint: Mapping[str, str]) -> SearchRequest | None:
        if self.parent is None or self.task_set is None:
            return None
        return SearchRequest(
            key=self.key,
            bucket=self.bucket,
            parent=self.parent,
            task_set=self.task_set,
            endpoint=endpoint,
            **{name: asked[name] for name in BUDGET},
        )


def _usual_server(project: Project, parent: Version | None) -> dict[str, str]:
    """That of the newest search, else the version's own, else the first that there is a key for."""
    newest = PromptSearch.objects.filter(project=project).order_by("-pk").values_list("endpoint", flat=True).first()
    own = parent.endpoint if parent and parent.endpoint.get("base_url") and not parent.is_program else None
    if endpoint := newest or own:
        return {name: endpoint.get(name, "") for name in SERVER}
    key = project.provider_keys.first()
    return {"base_url": key.base_url, "api_key_env": key.name} if key else {}
