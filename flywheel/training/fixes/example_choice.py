"""Few-shot examples of a version: corrected failures of a set's train split, never anything that is measured.

    offer = examples_for(task_set, version, bucket="wrong_tool")
    offer.block        the text that goes into a system prompt

An example is the recorded beginning of a train task and what a person says is right from there, in the version's form.
Left out is every task that shares its source, its trajectory or what a user asked in it with a held-out or sealed task
of the project, whatever set or environment that one is in.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import Q

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.core import envs
from flywheel.core.envs.replay.episode_replay import KIND, beginning
from flywheel.core.evidence.contamination import asked_in
from flywheel.core.evidence.similarity.diverse_choice import choose
from flywheel.core.text.normal_form import normalise
from flywheel.core.traces import call_forms, worked_examples
from flywheel.edge.refusals import Refused
from flywheel.environments.models import MEASURED, Task, TaskSet, TaskSetMember
from flywheel.training.datasets.dataset_builder import Speaker, solved, train_tasks
from flywheel.trajectories.models import Trajectory

TOKENS = 1_000
"""Of a block, unless somebody says otherwise."""
MOST_TOKENS = 20_000
MOST = 12
"""Examples in a block."""
POOL = 500
"""Tasks that are looked at, the newest."""
LEAST_WORDS, LEAST_CHARACTERS = 4, 20
"""Of what a user says, for its words to be a task's own: "yes, please" stands in many prompts."""


@dataclass(frozen=True, slots=True)
class Example:
    """The text by which one train task shows what is right."""

    task: Task
    text: str

    @property
    def tokens(self) -> int:
        return worked_examples.tokens(self.text)


@dataclass(frozen=True)
class Offer:
    """Chosen examples, and what they were chosen from."""

    examples: list[Example]
    pool: int
    """Corrected failures of the train split that could have been chosen."""
    left_out: int
    """Of those, how many have something of what is measured."""
    is_native: bool = False
    bucket: str = ""
    """Empty where they are of every bucket."""

    @cached_property
    def block(self) -> str:
        return worked_examples.block([example.text for example in self.examples], is_native=self.is_native)

    @property
    def tokens(self) -> int:
        return worked_examples.tokens(self.block)


class Measured:
    """Everything that the project measures with, as far as an example or a prompt may have nothing of it."""

    def __init__(self, project: Project) -> None:
        members = TaskSetMember.objects.filter(task_set__project=project, split__in=MEASURED)
        tasks = Task.objects.filter(Q(split__in=MEASURED) | Q(pk__in=members.values("task")), project=project)
        fields = ("pk", "cluster", "source_id", "prompt", "environment__kind", "state__messages")
        rows = list(tasks.order_by().values_list(*fields))
        self.tasks = {pk for pk, *_ in rows}
        self.clusters = {cluster for _, cluster, *_ in rows if cluster}
        self.sources = {source for _, _, source, *_ in rows if source}
        asked = [_Asked(prompt, messages if kind == KIND else None) for *_, prompt, kind, messages in rows]
        self.beginnings = {each.beginning for each in asked} - {""}
        self.requests = {text for each in asked for text in each.requests}

    def has(self, task: Task, kind: str) -> bool:
        """Whether the task, in an environment of this kind, its source, its trajectory, its beginning or what a user
        says in it is measured with."""
        return (
            task.pk in self.tasks
            or task.cluster in self.clusters
            or (task.source_id is not None and task.source_id in self.sources)
            or self._has_asked(_Asked(task.prompt, task.state.get("messages") if kind == KIND else None))
        )

    def has_source(self, source: Trajectory) -> bool:
        """Whether a task that is measured with was made of it, or of another one of its session."""
        return source.pk in self.sources or source.cluster in self.clusters

    def request_in(self, text: str) -> bool:
        """Whether the text holds something whole that a user says in a measured task."""
        whole = normalise(text)
        asked = (request for request in self.requests if request in whole)
        return any(re.search(rf"(?<!\w){re.escape(request)}(?!\w)", whole) for request in asked)

    def _has_asked(self, asked: "_Asked") -> bool:
        return asked.beginning in self.beginnings or not asked.requests.isdisjoint(self.requests)


class _Asked:
    """A task's beginning as it is compared: as a whole, and each text of a user that says something by itself. Its
    messages are those of a Replay; in the state of any other kind they are a table of its world."""

    def __init__(self, prompt: str, messages: Sequence[dict[str, Any]] | None) -> None:
        begun = beginning(envs.Task("", prompt, {}, {"messages": messages})) if messages else []
        said = [row["content"] for row in messages or () if row["role"] == "user"]
        self.beginning = normalise(asked_in(begun) if begun else prompt)
        self.requests = {text for text in map(normalise, [prompt, *said]) if _says_something(text)}


def _says_something(request: str) -> bool:
    return len(request) >= LEAST_CHARACTERS and len(request.split()) >= LEAST_WORDS


def examples_for(
    task_set: TaskSet,
    version: Version,
    *,
    bucket: str = "",
    budget: int = TOKENS,
    seed: int = 1,
    measured: Measured | None = None,
) -> Offer:
    """Choose examples that differ, within a budget of tokens; the same for the same seed. Of a bucket that has none in
    the train split, of every bucket. `measured` is the project's, where it was read already. Raises Refused."""
    if not 1 <= budget <= MOST_TOKENS:
        raise Refused(f"{budget} is not between 1 and {MOST_TOKENS} tokens", field="tokens")
    corrected = [task for task in train_tasks(task_set) if task.bucket and not task.is_synthetic]
    own = [task for task in corrected if task.bucket == bucket]
    pool = sorted(own or corrected, key=lambda task: -task.number)[:POOL]
    measured = measured or Measured(task_set.project)
    kind = task_set.environment_version.environment.kind
    fit = [task for task in pool if not measured.has(task, kind)]
    shown = list(_examples(task_set, version, fit))
    empty = worked_examples.tokens(worked_examples.block(["-"]))
    places = choose(
        [example.text for example in shown],
        [example.tokens + 1 for example in shown],
        budget=budget - empty,
        most=MOST,
        seed=seed,
    )
    chosen = [shown[place] for place in places]
    is_native = version.form == call_forms.NATIVE
    return Offer(chosen, len(pool), len(pool) - len(fit), is_native, bucket if own else "")


def _examples(task_set: TaskSet, version: Version, tasks: Iterable[Task]) -> Iterable[Example]:
    speaker = Speaker.of(task_set, version)
    for task in tasks:
        episode = solved(speaker, task)
        yield Example(task, worked_examples.example([speaker.write(message) for message in episode]))


def shown_in(prompts: Sequence[str], task_set: TaskSet, version: Version) -> list[list[str]]:
    """Name, for each prompt, the train tasks whose examples stand in it as they would be offered."""
    if not any(worked_examples.OPENS in prompt for prompt in prompts):
        return [[] for _ in prompts]
    corrected = [task for task in train_tasks(task_set) if task.bucket and not task.is_synthetic]
    examples = list(_examples(task_set, version, corrected))
    return [[str(example.task) for example in examples if example.text in prompt] for prompt in prompts]


def added_text(before: str, after: str) -> str:
    """Return the lines of a text that the one before has not."""
    known = set(before.splitlines())
    return "\n".join(line for line in after.splitlines() if line not in known)


def refuse_measured(texts: Collection[str], measured: Measured, *, field: str) -> None:
    """Raise Refused where a text that somebody wrote holds the request of a task that is measured with."""
    if any(measured.request_in(text) for text in texts):
        raise Refused(
            "holds the whole request of a held-out or sealed task: its score there would mean nothing. Take it out; "
            "examples come from train tasks",
            field=field,
        )
