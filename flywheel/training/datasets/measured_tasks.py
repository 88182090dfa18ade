"""All that the project measures with: its held-out and sealed tasks, whatever set or environment they are in.

Whoever makes something that is learnt from, examples, prompts or datasets, asks here what may not be in it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from flywheel.accounts.models import Project
from flywheel.core import envs
from flywheel.core.envs.replay.episode_replay import KIND, beginning
from flywheel.core.envs.replay.user_turns import lines_in
from flywheel.core.evidence.compared_items import asked_in
from flywheel.core.text.normal_form import normalise
from flywheel.core.traces import Message
from flywheel.core.traces.call_forms import as_native
from flywheel.environments.models import MEASURED, Task, TaskSetMember
from flywheel.trajectories.models import Trajectory

LEAST_WORDS, LEAST_CHARACTERS = 4, 20
"""Of what a user says, for its words to be a task's own: "yes, please" stands in many prompts."""
_SAID = ("messages", "turns", "script")
"""Where a Replay's state has a user's words: before the attempt, and in it."""


class Measured:
    """Everything that the project measures with, as far as an example or a prompt may have nothing of it."""

    def __init__(self, project: Project) -> None:
        members = TaskSetMember.objects.filter(task_set__project=project, split__in=MEASURED)
        tasks = Task.objects.filter(Q(split__in=MEASURED) | Q(pk__in=members.values("task")), project=project)
        fields = ("pk", "cluster", "source_id", "prompt", "environment__kind")
        rows = list(tasks.order_by().values_list(*fields, *(f"state__{name}" for name in _SAID)))
        self.tasks = {pk for pk, *_ in rows}
        self.clusters = {cluster for _, cluster, *_ in rows if cluster}
        self.sources = {source for _, _, source, *_ in rows if source}
        asked = [
            _Asked(prompt, dict(zip(_SAID, said, strict=True)) if kind == KIND else {})
            for _, _, _, prompt, kind, *said in rows
        ]
        self.beginnings = {each.beginning for each in asked} - {""}
        self.requests = {text for each in asked for text in each.requests}

    def has(self, task: Task, kind: str) -> bool:
        """Whether the task, in an environment of this kind, its source, its trajectory, its beginning or what a user
        says in it is measured with."""
        return (
            task.pk in self.tasks
            or task.cluster in self.clusters
            or (task.source_id is not None and task.source_id in self.sources)
            or self._has_asked(_Asked(task.prompt, task.state if kind == KIND else {}))
        )

    def has_beginning(self, messages: Sequence[Message]) -> bool:
        """Whether a measured task begins as this conversation does at some point, or a user says the same in both."""
        native = [as_native(message) for message in messages if message.role != "system"]
        said = [normalise(message.content) for message in native if message.role == "user"]
        if not self.requests.isdisjoint(text for text in said if _says_something(text)):
            return True
        places = [place for place, message in enumerate(native) if message.role == "assistant"] or [len(native)]
        return any(normalise(asked_in(native[:place])) in self.beginnings for place in places)

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
    """A task's beginning as it is compared: as a whole, and each text of a user that says something by itself, those of
    later turns too. The state is that of a Replay; that of any other kind, a world's tables, is left out."""

    def __init__(self, prompt: str, state: Mapping[str, Any]) -> None:
        messages = state.get("messages") or ()
        begun = beginning(envs.Task("", prompt, {}, {"messages": messages})) if messages else []
        said = [row["content"] for row in messages if row["role"] == "user"]
        said += [line["say"] for line in lines_in(state)]
        self.beginning = normalise(asked_in(begun) if begun else prompt)
        self.requests = {text for text in map(normalise, [prompt, *said]) if _says_something(text)}


def _says_something(request: str) -> bool:
    return len(request) >= LEAST_CHARACTERS and len(request.split()) >= LEAST_WORDS
