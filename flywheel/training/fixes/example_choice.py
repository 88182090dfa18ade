"""Few-shot examples of a version: corrected failures of a set's train split, never anything that is measured.

    offer = examples_for(task_set, version, bucket="wrong_tool")
    offer.block        the text that goes into a system prompt

An example is the recorded beginning of a train task and what a person says is right from there, in the version's form.
Left out is every task that shares its source, its trajectory or what a user asked in it with a held-out or sealed task
of the project, whatever set or environment that one is in.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from flywheel.agents.models import Version
from flywheel.core.evidence.similarity.diverse_choice import choose
from flywheel.core.traces import call_forms, worked_examples
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Task, TaskSet
from flywheel.training.datasets.dataset_builder import Speaker, solved, train_tasks
from flywheel.training.datasets.measured_tasks import Measured

TOKENS = 1_000
"""Of a block, unless somebody says otherwise."""
MOST_TOKENS = 20_000
MOST = 12
"""Examples in a block."""
POOL = 500
"""Tasks that are looked at, the newest."""


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
