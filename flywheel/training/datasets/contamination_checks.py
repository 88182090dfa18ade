"""Datasets against held-out sets: what is found is kept once for each pair, for both never change.

    at_hand(dataset)                against every task set of the project, as far as nobody has to wait for it
    check_all(dataset)              against every one, however long it takes
    checked(dataset, task_set)      one pair, found now where it was not yet
    check_version(version, task_set)    all that a version learnt from, found when it is evaluated on the set
    kept_checks(datasets, task_sets)      of these pairs those that were found already
    preview(draft)                  the same for rows that are not kept yet
    reports(project, rows)          the same for rows of a file, a part of which is held at a time

The work is about linear, and minutes for hundreds of thousands of rows. So a dataset of a task set is checked where it
is built if that is a matter of a second, and one from elsewhere by the worker that builds it. Pages and launches make
up for pairs that are missing (a set that was frozen after the dataset) under the same condition; the worker of a
training run or of an eval, and proposing, always do.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.core.files.storage import default_storage
from django.db.models import Q

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.core.evidence.compared_items import Item, item_of_prompt, item_of_row, item_of_task, items_of_row
from flywheel.core.evidence.contamination import METHOD, Report, check
from flywheel.core.recipes import ELSEWHERE
from flywheel.environments.models import MEASURED, Split, Suite, Task, TaskSet, TaskSetMember
from flywheel.environments.task_sets.leaks import learnt_from
from flywheel.environments.tasks.task_rows import core_task
from flywheel.environments.versions import reward_parts
from flywheel.training.models import ContaminationCheck, Dataset, TrainingRun

AT_ONCE = 3_000
"""Rows and held-out tasks together that a page compares while somebody waits."""

Tell = Callable[[], None]
"""Is called at each row that is read; what it raises ends the check, and nothing of it is kept."""


def check_all(dataset: Dataset) -> list[ContaminationCheck]:
    """The checks against every task set of the project, those that are missing made now."""
    return _make(dataset, TaskSet.objects.filter(project=dataset.project_id))


def checked(dataset: Dataset, task_set: TaskSet, tell: Tell = lambda: None) -> ContaminationCheck:
    """The check of this pair, made now where it is missing."""
    (found,) = _make(dataset, TaskSet.objects.filter(pk=task_set.pk), tell)
    return found


def check_version(version: Version, task_set: TaskSet) -> list[ContaminationCheck]:
    """The checks of everything that a version learnt from against this set, those that are missing made now."""
    return [checked(dataset, task_set) for dataset in datasets_of(version)]


def prompt_report(version: Version, task_set: TaskSet) -> Report:
    """Report what a version's prompt, the examples in it and its tools have of a set's held-out tasks: it is told them
    before every attempt."""
    items, _ = _held_out([task_set])
    return check([item_of_prompt(str(version), version.system_prompt, version.tools)], items.values())


def trained_elsewhere(version: Version) -> str:
    """Name the version, this one or one that it comes from or learnt from, whose weights were changed by no run here:
    nobody knows what they learnt from. Empty where there is none; a base model is what it is, and none of these."""
    versions = Version.objects.filter(pk__in=learnt_from([version])[version.pk]).select_related("agent", "parent")
    for each in versions.order_by("-pk"):
        if each.parent is None:
            is_unknown = each.adapter_id is not None
        else:
            is_changed = (each.weights_id, each.adapter_id) != (each.parent.weights_id, each.parent.adapter_id)
            is_unknown = is_changed and not TrainingRun.that_made([each]).exists()
        if is_unknown:
            return str(each)
    return ""


def kept_checks(
    datasets: Collection[Dataset], task_sets: Collection[TaskSet]
) -> dict[tuple[int, int], ContaminationCheck]:
    """The checks of these pairs that are kept, by the keys of the dataset and the set; none is made."""
    rows = ContaminationCheck.objects.filter(method=METHOD, dataset__in=datasets, task_set__in=task_sets)
    return {(check.dataset_id, check.task_set_id): check for check in rows}


def at_hand(dataset: Dataset) -> list[ContaminationCheck]:
    """The checks that nobody has to wait for: those that are kept, what is missing made up for where that is quick
    (`AT_ONCE`)."""
    held_out = TaskSetMember.objects.filter(task_set__project=dataset.project_id, split__in=MEASURED)
    if dataset.rows + held_out.order_by().values("task").distinct().count() <= AT_ONCE:
        return check_all(dataset)
    return list(_kept(dataset).order_by("-task_set_id"))


def reports(project: Project, rows: Iterable[Mapping[str, Any]]) -> dict[TaskSet, Report]:
    """Report what rows from elsewhere, which are read once, have of every held-out set of the project."""
    sets = list(TaskSet.objects.filter(project=project).order_by("-pk"))
    return _reports(rows, [], sets, *_held_out(sets)) if sets else {}


def keep(dataset: Dataset, found: Mapping[TaskSet, Report]) -> None:
    """Keep what was found, for good."""
    ContaminationCheck.objects.bulk_create(
        [
            ContaminationCheck(
                dataset=dataset, task_set=row, method=METHOD, verdict=report.verdict, report=report.as_dict()
            )
            for row, report in found.items()
        ],
        ignore_conflicts=True,
    )


def report_of(check: ContaminationCheck | Report) -> dict[str, Any]:
    """Return what was found, as it is kept."""
    return check.as_dict() if isinstance(check, Report) else dict(check.report)


def refusal(check: ContaminationCheck | Report, task_set: TaskSet) -> str:
    """Why nothing may be trained on this and measured on that; empty when it may."""
    report = report_of(check)
    if not report["blocked"]:
        return ""
    first = report["findings"][0]  # the levels that block come first, and of none are all findings kept
    words = {"task": "is trained on itself", "source": "shares its source", "content": "asks and wants the same"}
    also = f" with {first['train']}" if first["level"] != "task" else ""
    return (
        f"{len(report['blocked'])} of {report['held_out']} held-out tasks of {task_set} are in the training data: "
        f"{first['held_out']} {words[first['level']]}{also}. A score on them would mean nothing, so nobody can "
        "override this: retire the tasks on one side and freeze the set again"
    )


def suite_refusal(check: ContaminationCheck | Report, suite: Suite) -> str:
    """Why a version of the suite's agent may not be trained on this; empty when it may."""
    problem = refusal(check, suite.task_set)
    return f"{problem}; {suite} guards {suite.agent}" if problem else ""


def preview(
    rows: Iterable[Mapping[str, Any]], task_set: TaskSet, most: int | None = None
) -> dict[TaskSet, Report] | None:
    """Report what a dataset of these rows would share with every held-out set of the project, its own set first; None
    where that takes longer than a page may, and is found when it is built."""
    rows = list(rows)
    sets = list(TaskSet.objects.filter(project=task_set.project_id).order_by("-pk"))
    sets.sort(key=lambda row: row.pk != task_set.pk)
    items, members = _held_out(sets)
    if len(rows) + len(items) > (most or AT_ONCE):
        return None
    return _reports(rows, [task_set], sets, items, members)


def datasets_of(version: Version) -> list[Dataset]:
    """Everything that a version learnt from: its own run's datasets, and those of the versions that it comes from or
    that taught one of these."""
    runs = TrainingRun.that_made(learnt_from([version])[version.pk])
    learnt = Q(training_runs__in=runs) | Q(replayed_by__in=runs)
    return list(Dataset.objects.filter(learnt).distinct().order_by("pk"))


def learnt_by_reward(project: Project, spec: Mapping[str, Any]) -> list[Dataset]:
    """Everything that the reward models of a verifier or a recipe learnt from, and the versions that they began
    with."""
    models = reward_parts.models_of(project, spec).values()
    runs = TrainingRun.objects.filter(reward_model__in=list(models))
    own = list(Dataset.objects.filter(training_runs__in=runs).distinct().order_by("pk"))
    return own + [dataset for model in models for dataset in datasets_of(model.base) if dataset not in own]


def _kept(dataset: Dataset) -> Any:
    return dataset.contamination_checks.filter(method=METHOD).select_related("task_set", "dataset")


def _make(dataset: Dataset, sets: Any, tell: Tell = lambda: None) -> list[ContaminationCheck]:
    sets = list(sets.order_by("-pk"))
    kept = set(_kept(dataset).filter(task_set__in=sets).values_list("task_set_id", flat=True))
    if missing := [row for row in sets if row.pk not in kept]:
        items, members = _held_out(missing)
        keep(dataset, _reports(_along(_rows(dataset), tell), dataset.task_sets, missing, items, members))
    return list(_kept(dataset).filter(task_set__in=sets).order_by("-task_set_id"))


def _reports(
    rows: Iterable[Mapping[str, Any]],
    task_sets: Sequence[TaskSet],
    sets: list[TaskSet],
    items: Mapping[int, Item],
    members: Mapping[int, set[int]],
) -> dict[TaskSet, Report]:
    """One pass of the rows, which are of `task_sets`, over the held-out tasks of all sets, then each set's part."""
    count = 0

    def counted() -> Iterator[Mapping[str, Any]]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    sealed = set(Task.objects.filter(pk__in=items, split=Split.SEALED).values_list("pk", flat=True))
    found = replace(check(_items(counted(), task_sets), items.values()), train=count)
    whole = found.without_words({items[task].id for task in sealed})
    return {row: whole.among({items[task].id for task in members.get(row.pk, ())}) for row in sets}


def _held_out(sets: Collection[TaskSet]) -> tuple[dict[int, Item], dict[int, set[int]]]:
    """The held-out and sealed tasks of the sets, and by set which of them are its."""
    rows = TaskSetMember.objects.filter(task_set__in=sets, split__in=MEASURED).values_list("task_set", "task")
    members: dict[int, set[int]] = {}
    for task_set, task in rows:
        members.setdefault(task_set, set()).add(task)
    wanted = set().union(*members.values())
    tasks = Task.objects.filter(pk__in=wanted).select_related("environment", "source").order_by("pk")
    return {task.pk: _item(task) for task in tasks}, members


def _item(task: Task) -> Item:
    return item_of_task(core_task(task), place=task.environment.name, sources=_sources(task))


def _sources(task: Task) -> list[str]:
    return [f"trajectory {task.source.trace_id}"] if task.source else []


def _along(rows: Iterable[dict[str, Any]], tell: Tell) -> Iterator[dict[str, Any]]:
    for row in rows:
        tell()
        yield row


def _rows(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """The rows of the file; of a file that the storage has lost, the tasks that they were made of."""
    try:
        with default_storage.open(dataset.file) as file:
            yield from map(json.loads, file)
    except FileNotFoundError:
        members = TaskSetMember.objects.filter(task_set__in=dataset.task_sets, split=Split.TRAIN)
        for member in members.select_related("task"):
            yield core_task(member.task).to_json()


def _items(rows: Iterable[Mapping[str, Any]], task_sets: Sequence[TaskSet]) -> Iterator[Item]:
    """Rows with what the database knows of their tasks: where they come from, and what is right. In a mix, rows name
    the environment of their task. A row from elsewhere names the trajectory that it comes from, if any."""
    own = task_sets[0].environment_version.environment.name if task_sets else ""
    members = Task.objects.filter(task_sets__in=task_sets).select_related("environment", "source")
    tasks = {f"{task.environment.name}/{task}": task for task in members}
    for row in rows:
        name = row.get("task_id", row.get("id", ""))
        if row.get("origin") in ELSEWHERE:
            yield from items_of_row(row, sources=[f"trajectory {row['trajectory']}"] if "trajectory" in row else ())
            continue
        place = "" if row.get("environment") else own
        task = tasks.get(f"{place}/{name}" if place else name)
        item = item_of_row(row, place=place, sources=_sources(task) if task else ())
        if task is not None:
            whole = item_of_task(core_task(task))
            item = replace(
                item,
                sources=item.sources | whole.sources,
                world=whole.world,
                answers=tuple(dict.fromkeys([*item.answers, *whole.answers])),
            )
        yield item
