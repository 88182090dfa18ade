"""The rollouts behind a changed task, old beside new, and the sample that shows the change best."""

import json
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from flywheel.core.traces import Message
from flywheel.environments.models import Task
from flywheel.evals.models import EvalRun, Result
from flywheel.trajectories.store.stored_traces import traces_of


def pairs(candidate: EvalRun, baseline: EvalRun, tasks: Sequence[Task]) -> dict[int, dict[str, Any]]:
    """For each task, by primary key: `{sample, old, new, opening, turns}`, in three queries for all of them.

    `old` and `new` are results (None where an arm has none); `opening` is what both were asked, `turns` what came
    after, side by side: `[(old, new), …]`, each text, a JSON object, or None.
    """
    arms = [_results(run, tasks) for run in (baseline, candidate)]
    chosen = {task.pk: _choose(arms[0].get(task.pk, {}), arms[1].get(task.pk, {})) for task in tasks}
    results = [result for pair in chosen.values() for result in pair if result is not None]
    traces = traces_of(result.trajectory for result in results if result.trajectory is not None)
    said = {pk: trace.conversation() for pk, trace in traces.items()}
    return {pk: _shown(old, new, said) for pk, (old, new) in chosen.items()}


def _results(run: EvalRun, tasks: Sequence[Task]) -> dict[int, dict[int, Result]]:
    found: dict[int, dict[int, Result]] = {}
    for result in run.results.filter(task__in=tasks).select_related("trajectory").order_by("task", "sample"):
        found.setdefault(result.task_id, {})[result.sample] = result
    return found


def _choose(old: dict[int, Result], new: dict[int, Result]) -> tuple[Result | None, Result | None]:
    """The same sample of both, first of those where the outcome changed the way the task did."""
    worse = _passed(new.values()) < _passed(old.values())

    def interest(sample: int) -> tuple[bool, bool, int]:
        before, after = (arm[sample].success if sample in arm else None for arm in (old, new))
        turned = (before is True and after is False) if worse else (before is False and after is True)
        return not turned, before == after, sample

    samples = sorted({*old, *new}, key=interest)
    return (old.get(samples[0]), new.get(samples[0])) if samples else (None, None)


def _passed(results: Iterable[Result]) -> float:
    scored = [result.success for result in results if result.success is not None]
    return sum(scored) / len(scored) if scored else 0.0


def _shown(old: Result | None, new: Result | None, said: dict[int, list[Message]]) -> dict[str, Any]:
    # Their system prompts may differ, which the page of the versions shows.
    before, after = (_spoken(said.get(r.trajectory_id or 0, []) if r is not None else []) for r in (old, new))
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same] and before[same].role != "assistant":
        same += 1
    either = new or old
    return {
        "sample": either.sample if either else None,
        "old": old,
        "new": new,
        "opening": [message for message in (after or before)[: same or 1] if message.role == "user"],
        "turns": [
            (_readable(a) if a else None, _readable(b) if b else None)
            for a, b in zip_longest(_without_opening(before, same), _without_opening(after, same))
        ],
    }


def _spoken(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.role != "system"]


def _without_opening(messages: list[Message], same: int) -> list[Message]:
    return [message for message in messages[same:] if message.role != "user"]


def _readable(message: Message) -> Any:
    """A call as an object, whatever form it was made in; any other answer as its text."""
    if message.tool_calls:
        calls = [{"tool": call.name, "arguments": call.arguments} for call in message.tool_calls]
        return calls[0] if len(calls) == 1 else calls
    try:
        value = json.loads(message.content)
    except (ValueError, RecursionError):
        return message.content
    return value if isinstance(value, dict | list) else message.content
