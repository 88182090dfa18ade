"""Build a dataset: immutable rows from the train split of one task set, named by their content.

Demonstrations come from corrected failures and from passing rollouts (rejection sampling), pairs from a right and a
wrong answer to the same task, answers with a thumb are both of these one by one, scored attempts are those of an eval,
good and bad, practice tasks are the tasks themselves. Held-out tasks are nowhere near: rows are made from members of
the train split only, and the set is checked for clusters and prompts that straddle first of all.

Rows are written for a version: they open with its prompt, name its tools, and make calls in the form that its program
reads, so that nothing else is learnt than what is asked later.

`draft` makes the rows and writes nothing, `build` keeps them, `open_rows` gives them back.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, Any, NamedTuple, cast

from django.core.files.storage import default_storage

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.agents.references import current_version
from flywheel.core import digests, envs
from flywheel.core.envs.worlds.stand_ins import alone
from flywheel.core.evidence.contamination import key_of_row
from flywheel.core.traces import Message, call_forms, openai_messages, worked_examples
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused, at_field, check_choice
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.environments.task_sets.frozen_sets import refuse_overlap
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions.environment_versions import check_name
from flywheel.evals.models import EvalRun
from flywheel.training.datasets import attempt_scores, contamination_checks, dataset_files
from flywheel.training.datasets.attempt_scores import all_alike, scores_of
from flywheel.training.datasets.dataset_files import Draft
from flywheel.training.models import Dataset
from flywheel.trajectories.store.stored_traces import traces_of

MAX_PER_TASK = 4
"""Rows that one task may give beside its corrected answer, so that easy tasks do not dominate."""

MOST_ROWS = 500_000
"""Of a dataset from elsewhere."""
MOST_CHARACTERS = 500_000_000
"""Of all its rows, as JSON: each answer is written with all that came before it."""


class Attempt(NamedTuple):
    """One that was scored."""

    passed: bool
    messages: list[Message]
    """The whole conversation."""
    score: float
    name: str
    """Its trace id."""
    recorded: list[dict[str, Any]]
    """As `attempt_scores.recorded` has it."""


Attempts = dict[int, list[Attempt]]
"""By task."""


SAID = ("prompt", "completion", "chosen", "rejected")
"""Fields of a row that hold messages."""


def tokens(rows: Iterable[Mapping[str, Any]], names: Iterable[str] = SAID) -> int:
    """About how many tokens these fields of the rows hold."""
    texts = (m["content"] + str(m.get("tool_calls", "")) for row in rows for name in names for m in row.get(name, ()))
    return sum(map(worked_examples.tokens, texts))


def native_calls(rows: Iterable[Mapping[str, Any]]) -> int:
    """Count the rows in which a native call is learnt."""
    learnt = ((m for name in ("completion", "chosen") for m in row.get(name, ())) for row in rows)
    return sum(any(message.get("tool_calls") for message in said) for said in learnt)


def thumbs_of(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Count the rows with a thumb up as `true`, with a thumb down as `false`."""
    return Counter(str(row["label"]).lower() for row in rows if "label" in row)


def judgements(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of a recipe that counts thumbs or scores; empty for rows of other kinds."""
    found = {"thumbs": dict(thumbs_of(rows)), "scores": scores_of(rows)}
    return {name: counts for name, counts in found.items() if counts}


def one_sided(recipe: Mapping[str, Any]) -> str:
    """Say why nobody can learn from answers that all have the same thumb, or the same score, and what to add; empty
    where they do not, and for rows of other kinds."""
    if problem := all_alike(recipe):
        return problem
    up, down = (recipe.get("thumbs", {}).get(thumb, 0) for thumb in ("true", "false"))
    if bool(up) == bool(down):
        return ""
    kind, missing, how = (
        ("good", "bad", "failures that reviewers confirmed, attempts that failed, or thumbs down")
        if up
        else ("bad", "good", "corrections, attempts that passed, or thumbs up")
    )
    return f"has {up or down:,} {kind} answers and no {missing} one, and KTO needs both; add {how}"


def characters(rows: Iterable[Mapping[str, Any]]) -> int:
    """About how many characters rows take as JSON. Messages and tools that several rows share are read once."""
    sizes: dict[int, int] = {}
    total = 0
    for row in rows:
        for name in (*SAID, "tools"):
            for each in row.get(name, ()):
                if id(each) not in sizes:
                    sizes[id(each)] = len(json.dumps(each, ensure_ascii=False))
                total += sizes[id(each)]
    return total


def row_digest(row: Mapping[str, Any]) -> bytes:
    """Return what rows that repeat each other have in common, short however long they are."""
    return hashlib.sha256(key_of_row(row).encode()).digest()


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who is to say what the rows teach: a version in an environment. What stands in for tools there is asked nothing,
    since only a worker has it: a call that nobody recorded gets the environment's error."""

    env: envs.Environment
    form: str

    @classmethod
    def of(cls, task_set: TaskSet, version: Version | None) -> "Speaker":
        world, config = task_set.environment_version, version.config() if version else None
        env = envs.build(world.environment.kind, world.config, world.verifier, agent=config)
        return cls(alone(env), config.form if config else "")

    def row(self, task: Task, origin: str, **columns: Any) -> dict[str, Any]:
        """A row of these columns, with where it comes from and TRL's column `tools`. What was learnt from a synthetic
        task says so for ever."""
        row = {"task_id": str(task), "cluster": task.cluster, "origin": origin, **columns}
        row |= {"tools": openai_messages.chat_tools(self.env.tools)} if self.env.tools else {}
        return row | ({"synthetic": True} if task.is_synthetic else {})

    def write(self, message: Message) -> Message:
        """The message with its calls in the version's form."""
        return call_forms.write(message, self.form) if message.role == "assistant" else message


def speaker_of(task_set: TaskSet) -> Version | None:
    """Return the version that rows are written for where nobody names one: the live one of the environment's agent, or
    its newest."""
    agent = task_set.environment_version.environment.agent
    return current_version(agent) if agent else None


def draft(
    *,
    kind: str,
    task_set: TaskSet,
    version: Version | None = None,
    rollouts: EvalRun | None = None,
    leave_out: Collection[int] = (),
) -> Draft:
    """The rows of a kind that a task set gives now, for this version or `speaker_of` the set. Raises Refused.

    `rollouts` is a finished eval run on the train split of the same set, whose passing (and for pairs failing) attempts
    are used beside the corrected answers; `leave_out`, numbers of tasks that give no row.
    """
    check_choice(kind, MAKERS, field="kind")
    if rollouts is not None:
        _check_rollouts(rollouts, task_set)
    elif kind == Dataset.Kind.SCORED:
        raise Refused(
            f"name an evaluation of the train tasks of {task_set}, whose attempts are learnt", field="rollouts"
        )
    every = train_tasks(task_set)
    tasks = [task for task in every if task.number not in leave_out]
    version = version or speaker_of(task_set)
    made = list(MAKERS[kind](Speaker.of(task_set, version), tasks, _attempts(rollouts)))
    kept: dict[str, dict[str, Any]] = {}
    for row in made:
        kept.setdefault(key_of_row(row), row)
    rows = list(kept.values())
    if not rows:
        raise Refused(
            f"{task_set} gives no {Dataset.Kind(kind).label}: label failures, or evaluate on its train tasks",
            field="task_set",
        )
    recipe = _recipe(tasks, rows, rollouts) | {"duplicates": len(made) - len(rows)} | written_for(version)
    recipe |= {"left_out": left} if (left := len(every) - len(tasks)) else {}
    if problem := one_sided(recipe):
        raise Refused(f"{task_set} {problem}", field="task_set")
    return Draft(kind, task_set, rows, recipe, task_set.project)


def kept(dataset: Dataset, most: int | None = None) -> Draft:
    """Return a stored dataset as a draft, with its first rows or all of them. Raises Refused when the storage has lost
    it."""
    try:
        with open_rows(dataset) as file:
            rows = [json.loads(line) for line in islice(file, most)]
    except FileNotFoundError:
        raise Refused(f"the storage has lost the rows of {dataset}", field="dataset") from None
    return Draft(dataset.kind, dataset.task_set, rows, dataset.recipe, dataset.project, dataset.origin, dataset.card)


def train_tasks(task_set: TaskSet) -> list[Task]:
    """The tasks of the set that may be learnt from. Raises Refused where one of them also stands held out."""
    members = list(task_set.members.select_related("task").order_by("task__number"))
    with at_field("task_set"):
        refuse_overlap([member.task for member in members])
    return [member.task for member in members if member.split == Split.TRAIN]


def build(
    *,
    name: str,
    kind: str,
    task_set: TaskSet,
    actor: Actor,
    version: Version | None = None,
    rollouts: EvalRun | None = None,
    leave_out: Collection[int] = (),
) -> Dataset:
    """Build a dataset of a kind, or return the existing one with the same rows. Raises Refused.

    It is checked against every held-out set of the project there and then, unless that takes long: who trains on it or
    mixes it waits for what is missing, and nobody who builds it.
    """
    check_name(name)
    made = draft(kind=kind, task_set=task_set, version=version, rollouts=rollouts, leave_out=leave_out)
    dataset = dataset_files.keep(name, made, actor)
    contamination_checks.at_hand(dataset)
    return dataset


def open_rows(dataset: Dataset) -> IO[bytes]:
    """The file of a dataset, a row a line. Raises FileNotFoundError when the storage has lost it."""
    return cast(IO[bytes], default_storage.open(dataset.file))


def _check_rollouts(rollouts: EvalRun, task_set: TaskSet) -> None:
    if rollouts.task_set_id != task_set.pk or rollouts.split != Split.TRAIN:
        raise Refused(f"{rollouts} is not a run on the train split of {task_set}", field="rollouts")
    if rollouts.state != State.SUCCEEDED:
        raise Refused(
            f"{rollouts} is {rollouts.state}; its attempts can be used once it has succeeded", field="rollouts"
        )


def _demonstrations(speaker: Speaker, tasks: list[Task], attempts: Attempts) -> Iterator[dict[str, Any]]:
    for task in tasks:
        passed = [reopened(speaker, task, tried.messages) for tried in attempts.get(task.pk, []) if tried.passed]
        for number, episode in enumerate(_distinct([_right(speaker, task), *passed])[: MAX_PER_TASK + 1]):
            yield from demonstrations(speaker, task, episode, "rollout" if number else _origin(task))


def demonstrations(speaker: Speaker, task: Task, episode: list[Message], origin: str) -> Iterator[dict[str, Any]]:
    """A row for each thing that the agent says in a right episode, with all that came before as its prompt. What a
    task's recorded beginning says is no row of its own."""
    begun = len(speaker.env.reset(core_task(task), 0))
    written = [*episode[:begun], *map(speaker.write, episode[begun:])]
    for place in range(begun, len(episode)):
        if episode[place].role == "assistant":
            yield speaker.row(
                task,
                origin,
                prompt=[before.to_openai() for before in written[:place]],
                completion=[written[place].to_openai()],
            )


def preference(
    speaker: Speaker, task: Task, right: list[Message], wrong: list[Message], origin: str
) -> dict[str, Any] | None:
    """A row of what to say and what not to at the first point at which a wrong episode leaves the right one; None where
    it says nothing else, or nothing at all."""
    place, begun = _parting(right, wrong), len(speaker.env.reset(core_task(task), 0))
    if not place:
        return None
    return speaker.row(
        task,
        origin,
        prompt=[message.to_openai() for message in [*right[:begun], *map(speaker.write, right[begun:place])]],
        chosen=[speaker.write(right[place]).to_openai()],
        rejected=[wrong[place].to_openai()],
    )


def _origin(task: Task) -> str:
    if task.generation_id:
        return "generated"
    return "corrected" if task.bucket else "success" if _guards_a_success(task) else "imported"


def _guards_a_success(task: Task) -> bool:
    """Whether somebody was right at it; nobody has tried one that was generated or imported."""
    return not task.bucket and not task.generation_id and task.proof.get("is_failure", False) is False


def _right(speaker: Speaker, task: Task) -> list[Message]:
    """The episode of one who does everything right: for a task that guards a success what was said then, word for word,
    else what the target asks for."""
    pure, recorded = core_task(task), task.proof.get("recorded")
    if recorded and task.is_proved and _guards_a_success(task):
        return envs.episode(speaker.env, pure, lambda _: Message.from_json(recorded))
    return solved(speaker, task)


def reopened(speaker: Speaker, task: Task, messages: list[Message]) -> list[Message]:
    """An attempt as it would open today; what opened it then may have been another prompt's."""
    opening = speaker.env.reset(core_task(task), 0)
    before = sum(message.role == "assistant" for message in opening)
    spoken = [place for place, message in enumerate(messages) if message.role == "assistant"][before:]
    return [*opening, *messages[spoken[0] if spoken else len(messages) :]]


def _pairs(speaker: Speaker, tasks: list[Task], attempts: Attempts) -> Iterator[dict[str, Any]]:
    """A right and a wrong thing to say at the same point: the first at which a wrong episode leaves the right one."""
    for task in tasks:
        right, failed = solved(speaker, task), _failed(task)
        opening = speaker.env.reset(core_task(task), 0)
        wrong = [([*opening, failed], "failure")] if failed else []
        tried = attempts.get(task.pk, [])
        wrong += [(reopened(speaker, task, each.messages), "rollout") for each in tried if not each.passed]
        origins = {_output_key(episode): origin for episode, origin in reversed(wrong)}
        different = _distinct([episode for episode, _ in wrong])
        rows = (preference(speaker, task, right, episode, origins[_output_key(episode)]) for episode in different)
        yield from islice(filter(None, rows), MAX_PER_TASK + 1)


def _failed(task: Task) -> Message | None:
    """Return the answer that a person calls wrong: the agent's at the marked step, which the task's proof has kept."""
    if not task.source_id or task.proof.get("is_failure") is not True:
        return None
    return Message.from_json(task.proof["recorded"])


def solved(speaker: Speaker, task: Task) -> list[Message]:
    if solved := task.proof.get("solved"):  # in a world that only a worker plays
        return reopened(speaker, task, [Message.from_json(row) for row in solved])
    pure = core_task(task)
    return envs.episode(speaker.env, pure, partial(speaker.env.solve, pure))


def _parting(right: list[Message], wrong: list[Message]) -> int:
    """Where the wrong one first says something else than the right one; 0 where it says nothing that could be shown."""
    for place, (wanted, said) in enumerate(zip(right, wrong, strict=False)):
        if wanted.role != "assistant" or said.role != "assistant":
            continue
        if _output_key([wanted]) != _output_key([said]):
            return place if said.content or said.tool_calls else 0
    return 0


def _tasks(speaker: Speaker, tasks: list[Task], attempts: Attempts) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield core_task(task).to_json()


def _thumbs(speaker: Speaker, tasks: list[Task], attempts: Attempts) -> Iterator[dict[str, Any]]:
    """A thumb up for all that is imitated, a thumb down for what is said where a wrong episode leaves the right one:
    nobody has called bad what it said before."""
    for row in _demonstrations(speaker, tasks, attempts):
        yield row | {"label": True}
    for row in _pairs(speaker, tasks, attempts):
        del row["chosen"]
        yield row | {"completion": row.pop("rejected"), "label": False}


def _scored(speaker: Speaker, tasks: list[Task], attempts: Attempts) -> Iterator[dict[str, Any]]:
    for task in tasks:
        for tried in attempts.get(task.pk, []):
            episode = reopened(speaker, task, tried.messages)
            yield from scored(speaker, task, episode, tried.score, tried.name, tried.recorded)


def scored(
    speaker: Speaker, task: Task, episode: list[Message], score: float, name: str, recorded: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """A row for each thing that the policy says in an attempt, as of a demonstration, with the score of the whole, and
    with the log-probabilities that were recorded. Its group is its task."""
    rows = list(demonstrations(speaker, task, episode, "rollout"))
    told = recorded[-len(rows) :] if len(recorded) >= len(rows) else [{}] * len(rows)
    for row, sampled in zip(rows, told, strict=False):
        (said,) = row["completion"]
        if said["content"].strip() or said.get("tool_calls"):
            yield row | {"score": score, "group": str(task), "attempt": name, **sampled}


MAKERS = {"sft": _demonstrations, "pairs": _pairs, "tasks": _tasks, "thumbs": _thumbs, "scored": _scored}


def _attempts(rollouts: EvalRun | None) -> Attempts:
    """Unscored attempts teach nothing, and what somebody dropped nobody shall learn from: both are left out."""
    if rollouts is None:
        return {}
    scored = rollouts.results.exclude(success=None).filter(dropped=None)
    results = list(scored.select_related("trajectory").order_by("task_id", "sample"))
    traces = traces_of([result.trajectory for result in results if result.trajectory])
    found: Attempts = {}
    for result in results:
        trace = traces.get(result.trajectory_id or 0)
        said = trace.conversation() if trace else []
        if any(message.role == "assistant" for message in said):
            assert trace is not None
            recorded = attempt_scores.recorded(trace)
            tried = Attempt(bool(result.success), said, result.score or 0.0, trace.trace_id, recorded)
            found.setdefault(result.task_id, []).append(tried)
    return found


def _distinct(episodes: list[list[Message]]) -> list[list[Message]]:
    """Each episode once, where it came first."""
    found: dict[str, list[Message]] = {}
    for episode in episodes:
        found.setdefault(_output_key(episode), episode)
    return list(found.values())


def _output_key(messages: list[Message]) -> str:
    """Return an episode's identity: the agent's words and calls. The ids that an engine gave its calls do not count."""
    spoken = [message for message in messages if message.role == "assistant"]
    return digests.canonical([[m.content, [[c.name, c.arguments] for c in m.tool_calls]] for m in spoken]).decode()


def written_for(version: Version | None) -> dict[str, Any]:
    """Return the part of a recipe that says for whom the rows are written; nothing where there is no version."""
    return {"version": str(version), "config": digests.digest(version.config().to_json())} if version else {}


def unfit(dataset: Dataset, base: Version) -> str:
    """Why a version may not learn from these rows, which open with another's prompt; empty where it may."""
    wanted, is_uploaded = written_for(base)["config"], dataset.origin == Dataset.Origin.UPLOAD
    if (is_uploaded or dataset.mix) and (problem := _unreadable(dataset, base)):
        return problem
    if dataset.kind == Dataset.Kind.TASKS or dataset.recipe.get("config") == wanted:
        return ""
    if is_uploaded and "config" not in dataset.recipe:
        return ""
    other = dataset.recipe.get("version") or "no version in particular"
    return f"{dataset} is written for {other}, whose prompt, tools or form of calls are not those of {base}"


def _unreadable(dataset: Dataset, base: Version) -> str:
    """Why a version's program would not read the calls that uploaded rows teach, which open as whoever wrote them did;
    empty where it would."""
    form = base.config().form
    if form not in call_forms.TEXT_FORMS or not dataset.recipe.get("native_calls"):
        return ""
    return f"{dataset} makes native calls, and the program of {base} reads {call_forms.LABELS[form]}"


def _recipe(tasks: list[Task], rows: list[dict[str, Any]], rollouts: EvalRun | None) -> dict[str, Any]:
    return {
        "tasks": len(tasks),
        "from_failures": sum(bool(task.bucket) for task in tasks),
        "from_rollouts": sum(row.get("origin") == "rollout" for row in rows),
        "synthetic": sum(row.get("synthetic", False) for row in rows),
        "eval_run": rollouts.pk if rollouts else None,
        **judgements(rows),
    }
