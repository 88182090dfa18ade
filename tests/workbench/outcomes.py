"""The recorded runs under the `workplace` verifier, beside what WorkBench's own rules say of the calls they executed.

`python -m tests.workbench.outcomes` writes the tables of `docs/design/workplace.md`. The rules are those of
`src/evals/utils.py` and `src/tools` of WorkBench (github.com/olly-styles/WorkBench, MIT): the state that the executed
calls leave must equal, row by row in order and without regard to capitals, the state that the expected calls leave; a
run that ended with an error is wrong whatever it left; a side effect is any change of state by a run that is not right.
"""

import ast
import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.core.envs import Task
from flywheel.core.envs.workplace import Workplace, workbench
from flywheel.core.envs.workplace.world import BOARDS, LISTS, NOW
from flywheel.core.envs.workplace.world_tools import DEFINITIONS
from flywheel.core.evidence.statistics.estimates import Estimate, clustered_rate
from flywheel.core.interop.foreign_attempt import judge_recorded
from flywheel.core.interop.foreign_tasks import task_of
from flywheel.core.verifiers import CAUSES, REPLAY, UNREAD, Verdict
from flywheel.trajectories.formats.files.file_formats import parse_jsonl

RUNS = Path(__file__).parents[3] / "shared/data/workbench"
PAGE = Path(__file__).parents[2] / "docs/design/workplace.md"
BEGIN, END = "<!-- tables: python -m tests.workbench.outcomes -->", "<!-- end of tables -->"
FILES = {
    "calendar-gpt-3.5_domains": "calendar",
    "email-mistral-8x7B_all": "email",
    "project_management-gpt-3.5_domains": "project_management",
}
CAPITALS = {"list_name", "board"}

Rows = list[dict[str, str]]
Tables = dict[str, Rows]


@dataclass(frozen=True, slots=True)
class Run:
    file: str
    id: str
    template: str
    error: str
    verdict: Verdict
    """The `workplace` verifier's, of the calls that the trajectory shows."""
    correct: bool
    side_effects: bool
    """By WorkBench's rules, of the calls that were executed."""
    is_unread: bool
    """Calls were executed, and the trajectory shows none: the recording harness kept its framework's own data."""
    is_unreadable: bool
    """WorkBench's own replay cannot read some call back: a text with a line break."""

    @property
    def success(self) -> bool | None:
        return self.verdict.success

    @property
    def unsafe(self) -> bool:
        return bool(self.verdict.parts.get("unsafe"))


def runs() -> Iterator[Run]:
    """All recorded runs that have a task, which is every one."""
    env = Workplace({"database": workbench.database(RUNS), "max_turns": 100}, {})
    before = tables()
    for file, domain in FILES.items():
        lines = (RUNS / f"{file}.atif.jsonl").read_bytes().splitlines()
        for line, task in zip(lines, tasks(domain), strict=True):
            row = json.loads(line)
            [parsed] = parse_jsonl([line], "atif")
            assert parsed.trace
            assert row["steps"][0]["message"] == task.prompt
            error, executed = row["extra"]["error"], row["extra"]["executed_calls"]
            correct, side_effects = judged(before, task, executed, error)
            yield Run(
                file=file,
                id=row["trajectory_id"],
                template=task.slice,
                error=error,
                verdict=judge_recorded(env, task, parsed.trace),
                correct=correct,
                side_effects=side_effects,
                is_unread=bool(executed) and not any(s.get("tool_calls") for s in row["steps"]),
                is_unreadable=any("\n" in call for call in executed),
            )


def judged(before: Tables, task: Task, calls: list[str], error: str) -> tuple[bool, bool]:
    """Say by WorkBench's rules whether a run that executed these calls is right, and whether it has side effects."""
    after = carried_out(before, calls)
    right = plain(after) == plain(by_target(before, task))
    return right and not error, after != before and not right


def tasks(domain: str) -> list[Task]:
    lines = (RUNS / f"{domain}-tasks.jsonl").read_bytes().splitlines()
    return [task_of(json.loads(line), "workplace", DEFINITIONS) for line in lines]


def tables() -> Tables:
    found = workbench.database(RUNS)
    return {name: found[name] for name in ("calendar", "emails", "tasks")}


def carried_out(before: Tables, calls: list[str]) -> Tables:
    """The state after calls written as WorkBench records them, `tool.func(name="value", …)`. What fails is skipped."""
    after = copy.deepcopy(before)
    for text in calls:
        try:
            node = ast.parse(text, mode="eval").body
            assert isinstance(node, ast.Call)
            name = ast.unparse(node.func).removesuffix(".func")
            given = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
            CHANGES[name](after, **given)
        except (SyntaxError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return after


def by_target(before: Tables, task: Task) -> Tables:
    after = copy.deepcopy(before)
    for call in task.target["calls"]:
        CHANGES[call["tool"]](after, **call["arguments"])
    return after


def plain(state: Tables) -> list[Any]:
    return [
        [{name: value if name in CAPITALS else value.lower() for name, value in row.items()} for row in rows]
        for rows in state.values()
    ]


# The tools that change something, as WorkBench wrote them


def _next(rows: Rows, key: str) -> str:
    return str(int(max(row[key] for row in rows)) + 1)


def _delete(table: str, key: str) -> Callable[..., None]:
    def run(state: Tables, **given: str) -> None:
        state[table][:] = [row for row in state[table] if row[key] != given[key]]

    return run


def _create_event(
    state: Tables, event_name: str = "", participant_email: str = "", event_start: str = "", duration: str = ""
) -> None:
    if event_name and participant_email and event_start and duration:
        rows = state["calendar"]
        row = {"event_id": _next(rows, "event_id").zfill(8), "event_name": event_name}
        row |= {"participant_email": participant_email.lower(), "event_start": event_start, "duration": duration}
        rows.append(row)


def _update_event(state: Tables, event_id: str = "", field: str = "", new_value: str = "") -> None:
    for row in state["calendar"]:
        if row["event_id"] == event_id and field and new_value:
            row[field] = new_value.lower() if field == "participant_email" else new_value


def _send_email(state: Tables, recipient: str = "", subject: str = "", body: str = "") -> None:
    if recipient and subject and body and "@" in recipient and "." in recipient:
        row = {"email_id": _next(state["emails"], "email_id"), "inbox/outbox": "outbox"}
        row |= {"sender/recipient": recipient.lower(), "subject": subject, "sent_datetime": NOW, "body": body}
        state["emails"].append(row)


def _forward_email(state: Tables, email_id: str = "", recipient: str = "") -> None:
    for row in [row for row in state["emails"] if row["email_id"] == email_id]:
        _send_email(state, recipient, f"FW: {row['subject']}", row["body"])


def _reply_email(state: Tables, email_id: str = "", body: str = "") -> None:
    for row in [row for row in state["emails"] if row["email_id"] == email_id]:
        _send_email(state, row["sender/recipient"], row["subject"], body)


def _takes(state: Tables, field: str, value: str) -> bool:
    people = {row["assigned_to_email"].lower() for row in state["tasks"]}
    return value in {"board": BOARDS, "list_name": LISTS, "assigned_to_email": people}.get(field, (value,))


def _create_task(state: Tables, **given: str) -> None:
    names = ("task_name", "assigned_to_email", "list_name", "due_date", "board")
    given["assigned_to_email"] = given["assigned_to_email"].lower()
    if set(given) == set(names) and all(_takes(state, name, value) for name, value in given.items()):
        key = _next(state["tasks"], "task_id").zfill(8)
        state["tasks"].append({"task_id": key} | {name: given[name] for name in names})


def _update_task(state: Tables, task_id: str = "", field: str = "", new_value: str = "") -> None:
    value = new_value.lower() if field == "assigned_to_email" else new_value
    for row in state["tasks"]:
        if row["task_id"] == task_id and field in row and value and _takes(state, field, value):
            row[field] = value


CHANGES: dict[str, Callable[..., None]] = {
    "calendar.create_event": _create_event,
    "calendar.update_event": _update_event,
    "calendar.delete_event": _delete("calendar", "event_id"),
    "email.send_email": _send_email,
    "email.forward_email": _forward_email,
    "email.reply_email": _reply_email,
    "email.delete_email": _delete("emails", "email_id"),
    "project_management.create_task": _create_task,
    "project_management.update_task": _update_task,
    "project_management.delete_task": _delete("tasks", "task_id"),
}
"""WorkBench sends an email into the place that its table's length names, which after a deletion can be somebody
else's; no recorded or expected call does so after one, and here it is appended."""


# The report


CLASSES: dict[str, Callable[[Run], bool]] = {
    "WorkBench cannot read a call back that has a line break": lambda run: run.is_unreadable,
    "some of the wanted changes and no other": lambda run: not run.unsafe and bool(run.verdict.parts["changes"]),
    "something else": lambda _: True,
}
"""Why the two may differ, the first that fits."""


def disagreements(found: list[Run]) -> dict[str, list[Run]]:
    """Scored runs of which the two say different things, in success or in side effects, by why."""
    classes: dict[str, list[Run]] = {name: [] for name in CLASSES}
    for run in found:
        if run.success is not None and (run.success, run.unsafe) != (run.correct, run.side_effects):
            classes[next(name for name, fits in CLASSES.items() if fits(run))].append(run)
    return classes


def tables_of(found: list[Run]) -> str:
    lines = [
        "| file | runs | not scored | right, here | right, WorkBench | side effects, here | side effects, WorkBench |",
        "|---|---|---|---|---|---|---|",
    ]
    for file in FILES:
        mine = [run for run in found if run.file == file]
        scored = [run for run in mine if run.success is not None]
        rates = [
            _rate(scored, lambda run: run.success),
            _rate(scored, lambda run: run.correct),
            _rate(scored, lambda run: run.unsafe),
            _rate(scored, lambda run: run.side_effects),
        ]
        lines.append(f"| `{file}` | {len(mine)} | {len(mine) - len(scored)} | {' | '.join(rates)} |")
    lines += ["", "| not scored | " + " | ".join(f"`{file}`" for file in FILES) + " |", "|---|---|---|---|"]
    for cause in (UNREAD, REPLAY):
        counts = Counter(run.file for run in found if run.verdict.cause == cause)
        lines.append(f"| {CAUSES[cause]} | " + " | ".join(str(counts[file]) for file in FILES) + " |")
    lines += ["", "| where they differ | " + " | ".join(f"`{file}`" for file in FILES) + " |", "|---|---|---|---|"]
    for name, of_class in disagreements(found).items():
        counts = Counter(run.file for run in of_class)
        lines.append(f"| {name} | " + " | ".join(str(counts[file]) for file in FILES) + " |")
    return "\n".join(lines)


def _rate(found: list[Run], says: Callable[[Run], bool | None]) -> str:
    values = [says(run) for run in found]
    scored = [None if value is None else float(value) for value in values]
    rate: Estimate = clustered_rate(scored, [run.template for run in found])
    assert rate.mean is not None
    shown = f"{sum(value or 0 for value in scored):.0f} ({rate.mean:.0%}"
    return shown + (f" [{rate.low:.0%}, {rate.high:.0%}])" if rate.low is not None and rate.high is not None else ")")


def main() -> None:
    text = PAGE.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:start]}\n{tables_of(list(runs()))}\n{text[end:]}")


if __name__ == "__main__":
    main()
