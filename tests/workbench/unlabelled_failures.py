"""Every failing recorded run that nobody labelled, with a perfect correction, as a task with its proof:
`python -m tests.workbench.unlabelled_failures` prints how many are proved, and names those that are not.

A run fails by WorkBench's own rules (`outcomes`). It is marked at the first step that changes something which the
task's author does not want, else at the last one, and what is right there is what is still wanted: the author's calls
without those that were made before, else no call and words. Runs are taken in by the parser of ATIF, tasks are made by
`content_from` and proved by `prove`, as for a reviewer's decision; only nothing is stored.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core.envs.replay.episode_replay import KIND
from flywheel.core.envs.replay.wanted_items import is_exact_call
from flywheel.core.envs.workplace.world_tools import DEFINITIONS
from flywheel.core.traces import Trace, speaking, tooling
from flywheel.trajectories.formats.files.file_formats import parse_jsonl
from tests.workbench import outcomes, report

NOTHING = {"avoid": [], "text": "There is nothing to change, so I left everything as it is."}
"""The perfect answer where the task's author wants no call, or none any more."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A failing run as a reviewer would leave it."""

    run: str
    file: str
    trace: Trace
    step: str
    corrected: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of it."""

    marked: Marked
    problem: str
    """Why it is no proved task: what its making was refused with, or the checks that failed; empty where it is one."""


def correction(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The calls that are wanted, as a correction says them."""
    if len(calls) == 1:
        return dict(calls[0])
    return {"calls": [*calls], "order": "any"} if calls else dict(NOTHING)


def departure(trace: Trace, wanted: Sequence[Mapping[str, Any]]) -> tuple[str, list[Mapping[str, Any]]]:
    """The step that first changes what is not wanted, else the agent's last one, and what is still wanted there."""
    left, step, before = [*wanted], "", [*wanted]
    for each in speaking(trace.steps):
        if not any(message.role == "assistant" for message in each.output):
            continue
        step, before = each.span_id, [*left]
        for call in (call for message in each.output for call in tooling.calls_of(message)):
            fits = next((one for one in left if is_exact_call(call, one)), None)
            if fits is not None:
                left.remove(fits)
            elif call.name in outcomes.CHANGES:
                return step, before
    return step, before


def marked() -> Iterator[Marked]:
    """All failing runs without a label."""
    labelled = {label.run for label in report.labels()}
    failing = {run.id for run in outcomes.runs() if not run.correct} - labelled
    for file, domain in outcomes.FILES.items():
        lines = (outcomes.RUNS / f"{file}.atif.jsonl").read_bytes().splitlines()
        for line, task in zip(lines, outcomes.tasks(domain), strict=True):
            [parsed] = parse_jsonl([line], "atif")
            assert parsed.trace
            if parsed.trace.trace_id in failing:
                step, left = departure(parsed.trace, task.target["calls"])
                yield Marked(parsed.trace.trace_id, file, parsed.trace, step, correction(left))


def tried(failures: Iterable[Marked]) -> list[Tried]:
    """What becomes of each in a Replay with the recorded agent's tools. In a Flywheel's settings."""
    from flywheel.edge.refusals import Refused
    from flywheel.environments.models import Environment, EnvironmentVersion, Task
    from flywheel.environments.proofs.red_green_proof import prove
    from flywheel.environments.tasks.recorded_tasks import content_from
    from flywheel.failures.models import Decision, Failure
    from flywheel.trajectories.models import Trajectory

    place = Environment(name="replay", kind=KIND)
    version = EnvironmentVersion(
        environment=place, number=1, config={"tools": list(DEFINITIONS)}, verifier={"kind": KIND}
    )
    found = []
    for each in failures:
        row = Trajectory(trace_id=each.run, metadata=each.trace.metadata)
        failure = Failure(trajectory=row, decision=Decision.ADDED, bucket="other", step=each.step)
        failure.corrected = each.corrected
        try:
            content, answer = content_from(failure, KIND, each.trace)
        except Refused as refusal:
            found.append(Tried(each, str(refusal)))
            continue
        task = Task(environment=place, number=1, prompt=content.prompt, state=content.state, target=content.target)
        proof, is_proved = prove(task, version, recorded=answer, is_failure=True)
        wrong = [f"{check['name']}: {check['reason']}" for check in proof["checks"] if not check["passed"]]
        found.append(Tried(each, "" if is_proved else "; ".join(wrong)))
    return found


def table(found: Sequence[Tried]) -> str:
    """How many of each file are proved, as `docs/design/replay.md` has it."""
    lines = ["| file | failing, not labelled | proved tasks |", "|---|---|---|"]
    for file in [*outcomes.FILES, ""]:
        mine = [each for each in found if file in ("", each.marked.file)]
        proved = sum(not each.problem for each in mine)
        lines.append(f"| {f'`{file}`' if file else 'all'} | {len(mine)} | {proved} |")
    return "\n".join(lines)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    found = tried(marked())
    print(table(found))
    for reason, times in Counter(each.problem for each in found if each.problem).most_common():
        print(f"\n{times}: {reason}")
        print("\n".join(f"  {each.marked.file} {each.marked.run}" for each in found if each.problem == reason))


if __name__ == "__main__":
    main()
