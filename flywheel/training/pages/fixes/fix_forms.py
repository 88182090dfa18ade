"""The form of trying a fix: what is asked, and a draft after the other."""

import uuid
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.text import capfirst

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.agents.references import current_version, find_version
from flywheel.agents.version_content import DEFAULT_SAMPLING, MAX_TOKENS
from flywheel.core.errors import FieldError
from flywheel.edge.numbers import number
from flywheel.edge.refusals import Missing
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.evals.runs.submission import MAX_SAMPLES, MAX_SEED, RunSettings
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.fixes.example_choice import MOST_TOKENS, TOKENS, Offer, examples_for
from flywheel.training.fixes.trial_lifecycle import (
    LONGEST_NAME,
    LONGEST_PROMPT,
    MOST_DRAFTS,
    DraftContent,
    TrialRequest,
)

OFFERED = 50
"""Versions and sets that the lists offer."""
ADDED = {"prompt": "Prompt", "examples": "Examples"}
"""Kinds of draft that the form adds, and their names."""


def prompt_field() -> forms.CharField:
    """A system prompt, to be edited."""
    area = forms.Textarea(attrs={"rows": 12, "spellcheck": "false", "class": "code"})
    return forms.CharField(required=False, strip=False, max_length=LONGEST_PROMPT, label="System prompt", widget=area)


class DraftForm(forms.Form):
    """A draft: its parent's prompt and descriptions of tools, to be edited."""

    name = forms.CharField(max_length=LONGEST_NAME)
    system_prompt = prompt_field()

    temperature = forms.FloatField(min_value=0, max_value=5, required=False)
    top_p = forms.FloatField(label="Top p", min_value=0, max_value=1, required=False)
    max_tokens = forms.IntegerField(label="Max output tokens", min_value=1, max_value=MAX_TOKENS, required=False)

    def __init__(self, parent: Version, place: int, data: Mapping[str, Any]) -> None:
        super().__init__(data, prefix=f"draft-{place}")
        self.parent, self.place = parent, place
        self.usual_sampling = DEFAULT_SAMPLING | parent.sampling
        for name, value in self.usual_sampling.items():
            self.fields[name].widget.attrs["placeholder"] = value
        self.tools = {f"tool-{number}": tool for number, tool in enumerate(parent.tools)}
        for field, tool in self.tools.items():
            widget = forms.Textarea(attrs={"rows": 3})
            self.fields[field] = forms.CharField(label=tool["name"], required=False, strip=False, widget=widget)

    @classmethod
    def texts(cls, parent: Version, place: int, name: str, system_prompt: str) -> dict[str, str]:
        """Return what the form of a draft sends that has this prompt and all else as it is."""
        tools = {f"tool-{number}": tool.get("description", "") for number, tool in enumerate(parent.tools)}
        sampling = {name: str(value) for name, value in (DEFAULT_SAMPLING | parent.sampling).items()}
        said = {"name": name, "system_prompt": system_prompt, **sampling, **tools}
        return {f"draft-{place}-{field}": text for field, text in said.items()}

    @property
    def descriptions(self) -> list[forms.BoundField]:
        return [self[field] for field in self.tools]

    @property
    def sampling(self) -> list[forms.BoundField]:
        return [self[name] for name in DEFAULT_SAMPLING]

    @property
    def changes_sampling(self) -> bool:
        return bool(self._sampling)

    @property
    def _sampling(self) -> dict[str, Any]:
        """Return what is other than the parent's; an empty field is as it is."""
        self.is_valid()
        filled = {name: self.cleaned_data.get(name) for name in DEFAULT_SAMPLING}
        return {name: value for name, value in filled.items() if value not in (None, self.usual_sampling[name])}

    @property
    def changes_tools(self) -> bool:
        return any(self[field].value() != tool.get("description", "") for field, tool in self.tools.items())

    @property
    def content(self) -> DraftContent:
        """Its content, once it is valid. Browsers send line ends as CRLF; what was only looked at stays as it was."""
        words = {name: self.cleaned_data[name] for name in ("name", "system_prompt", *self.tools)}
        texts = {name: text.replace("\r\n", "\n") for name, text in words.items()}
        described = {tool["name"]: texts[field] for field, tool in self.tools.items()}
        return DraftContent(
            name=texts["name"],
            system_prompt=texts["system_prompt"],
            descriptions={
                tool["name"]: described[tool["name"]]
                for tool in self.parent.tools
                if described[tool["name"]] != tool.get("description", "").replace("\r\n", "\n")
            },
            sampling=self._sampling,
        )

    @property
    def is_unchanged(self) -> bool:
        content = self.content
        return content.system_prompt == self.parent.system_prompt and not (content.descriptions or content.sampling)


class FixForm(forms.Form):
    """The fields beside the drafts, which are in `drafts`."""

    key = forms.UUIDField(widget=forms.HiddenInput)
    samples = forms.IntegerField(min_value=1, max_value=MAX_SAMPLES)
    seed = forms.IntegerField(min_value=0, max_value=MAX_SEED)
    tokens = forms.IntegerField(min_value=1, max_value=MOST_TOKENS)

    def __init__(self, project: Project, bucket: str, data: Mapping[str, Any]) -> None:
        self.bucket, self.task_set = bucket, usual_task_set(project, bucket, str(data.get("task_set", "")))
        self.parent = usual_parent(project, self.task_set, str(data.get("version", "")))
        first = {"key": str(uuid.uuid4()), "samples": "4", "seed": "1", "tokens": str(TOKENS)}
        super().__init__({**first, **{name: data[name] for name in first if name in data}})
        self.texts = {name: str(data[name]) for name in data if name.startswith("draft-")}
        self.problem = ""

    @property
    def drafts(self) -> list[DraftForm]:
        if self.parent is None:
            return []
        return [DraftForm(self.parent, place, self.texts) for place in range(self._count)]

    @property
    def _count(self) -> int:
        return int(self.texts.get("draft-count", "0"))  # as `texts_of` wrote it

    def begin(self) -> None:
        """Fill in what is most often tried: another prompt, and examples where there are any."""
        self.texts["draft-count"] = "0"
        self.add("prompt")
        if self.offer and self.offer.examples:
            self.add("examples")

    @cached_property
    def measured(self) -> Measured | None:
        """Everything that is measured with, read once for a page; None where there is no set."""
        return Measured(self.task_set.project) if self.task_set else None

    @cached_property
    def offer(self) -> Offer | None:
        """Examples as the form asks for them; None where the form or the set gives none."""
        if self.parent is None or self.task_set is None or not self.is_valid():
            return None
        asked = self.cleaned_data
        try:
            return examples_for(
                self.task_set,
                self.parent,
                bucket=self.bucket,
                budget=asked["tokens"],
                seed=asked["seed"],
                measured=self.measured,
            )
        except FieldError as error:
            self.problem = capfirst(str(error))
            return None

    def add(self, kind: str) -> None:
        """Add a draft of a kind; nothing where there are as many as may be."""
        place = self._count
        if self.parent is None or place >= MOST_DRAFTS:
            return
        prompt = self.parent.system_prompt
        if kind == "examples" and (offer := self.offer):
            prompt = "\n\n".join(filter(None, [prompt, offer.block]))
        names = {text for name, text in self.texts.items() if name.endswith("-name")}
        numbered = (f"{ADDED[kind]} {number}" for number in range(1, 2 * MOST_DRAFTS))
        name = next(each for each in numbered if each not in names)
        self.texts |= DraftForm.texts(self.parent, place, name, prompt)
        self.texts["draft-count"] = str(place + 1)

    def remove(self, place: int) -> None:
        """Leave a draft out; those after it move up."""
        drafts = self.drafts
        kept = [draft for draft in drafts if draft.place != place]
        texts = {"draft-count": str(len(kept))}
        for at, draft in enumerate(kept):
            said = {field: draft[field].data or "" for field in draft.fields}
            texts |= {f"draft-{at}-{field}": text for field, text in said.items()}
        self.texts = texts

    def request(self, drafts: list[DraftForm]) -> TrialRequest | None:
        """Return what is to be tried, without drafts that change nothing; None with all that is wrong noted."""
        is_valid = all([self.is_valid(), *(draft.is_valid() for draft in drafts)])
        if self.parent is None or self.task_set is None or not is_valid:
            return None
        changed = [draft for draft in drafts if not draft.is_unchanged]
        if not changed:
            self.problem = f"No draft changes anything of {self.parent}. Edit a prompt, a description or the sampling."
            return None
        asked = self.cleaned_data
        return TrialRequest(
            key=asked["key"],
            bucket=self.bucket,
            parent=self.parent,
            task_set=self.task_set,
            drafts=[draft.content for draft in changed],
            settings=RunSettings(samples=asked["samples"], seed=asked["seed"]),
        )

    def show(self, error: FieldError, drafts: list[DraftForm]) -> None:
        """Put a refusal at its field: `drafts.1.system_prompt` is of the second draft that changes something."""
        changed = [draft for draft in drafts if not draft.is_unchanged]
        at, _, field = error.field.removeprefix("drafts.").partition(".")
        field = field.removeprefix("sampling.")
        place = number(at, most=len(changed) - 1)
        if error.field.startswith("drafts.") and place is not None:
            draft = changed[place]
            draft.add_error(field if field in draft.fields else None, capfirst(error.problem))
        elif error.field in self.fields:
            self.add_error(error.field, error.problem)
        else:
            self.problem = capfirst(str(error))


def texts_of(data: QueryDict) -> dict[str, str]:
    """The form's texts; of drafts no more than there may be."""
    texts = {name: str(value) for name, value in data.items()}
    count = number(texts.get("draft-count", "")) or 0
    return texts | {"draft-count": str(min(count, MOST_DRAFTS))}


def offered(project: Project, parent: Version | None) -> dict[str, Any]:
    """The lists of versions and sets that something may be tried with."""
    versions = Version.objects.filter(agent=parent.agent if parent else None).order_by("-pk")
    return {
        "versions": versions.select_related("agent")[:OFFERED],
        "task_sets": TaskSet.objects.filter(project=project).order_by("-pk")[:OFFERED],
    }


def usual_task_set(project: Project, bucket: str, ref: str) -> TaskSet | None:
    """The set that is named, else the newest to train on that has the bucket's tasks, else the usual one."""
    if ref:
        return find_task_set(project, ref)
    rows = TaskSet.objects.filter(project=project)
    own = rows.filter(members__split=Split.TRAIN, members__task__bucket=bucket).order_by("-pk").first()
    found = own or rows.usual()
    return find_task_set(project, str(found)) if found else None


def usual_parent(project: Project, task_set: TaskSet | None, ref: str) -> Version | None:
    """The version that is named, else what is live of the environment's agent. Raises Missing."""
    if ref:
        return find_version(project, ref)
    agent = task_set.environment_version.environment.agent if task_set else None
    found = current_version(agent) if agent else None
    if agent and found is None:
        raise Missing(f"{agent} has no version yet")
    return find_version(project, str(found)) if found else None
