"""What the detectors propose on runs of agents that they were never tuned on: `python -m tests.workbench.held_out
--runs FOLDER`, where the folder is a clone of github.com/olly-styles/WorkBench (MIT, MindsDB, 2024).

Reads the recorded results of every agent on the tasks of calendar, email and project management, has `outcomes` say by
WorkBench's own rules which run fails, and prints the tables of `docs/design/detectors.md`. Rules may be changed by
looking at the three files that labels were made of (`report`), never by looking at these runs.
"""

import argparse
import ast
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.core.detectors.standard_buckets import DETECTORS, Context, Proposal, detect
from flywheel.core.envs.workplace.world_tools import DEFINITIONS
from flywheel.core.evidence.statistics.estimates import clustered_rate
from flywheel.core.traces import Trace
from flywheel.trajectories.formats.files.file_formats import parse_jsonl
from tests.workbench import outcomes
from tests.workbench.report import shown, table

AGENTS = {
    "gpt-4_domains": "gpt-4, tools of the task",
    "gpt-4_all": "gpt-4, all tools",
    "claude-2_domains": "claude-2, tools of the task",
    "claude-2_all": "claude-2, all tools",
    "llama2-70b_domains": "llama2-70b, tools of the task",
}
"""Held out: no run of these models was looked at."""
WEAKEST = "llama2-70b_domains"
"""Nearly all of its runs fail, so that whatever speaks up is right: figures without it stand beside."""
KIN = {"mistral-8x7B_domains": "mixtral-8x7B, tools of the task"}
"""Of a model that was looked at with other tools."""
TOLD = (
    "Today's date is Thursday, 2023-11-30 and the current time is 00:00:00. Remember the current date and time when "
    "answering queries. Meetings must not start before 9am or end after 6pm."
)
"""What WorkBench tells every agent before it asks."""


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run, what became of it, and what is proposed for it."""

    agent: str
    domain: str
    template: str
    trace: Trace
    fails: bool
    side_effects: bool
    proposals: list[Proposal]
    """Of the detectors that are on by default."""
    every: list[Proposal]
    """Of all detectors."""

    def of(self, detector: str) -> bool:
        """Whether this detector proposes something, on by default or not."""
        return any(proposal.detector == detector for proposal in self.every)


def atif(query: str, response: str, error: str, run: str, agent: str) -> dict[str, Any]:
    """A recorded result as a trajectory in ATIF. A response that is no data is the agent's only message."""
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "system", "message": TOLD}]
    steps.append({"step_id": 2, "source": "user", "message": query})
    try:
        told = _literal(ast.parse(response.strip(), mode="eval").body)
        taken, last = list(told["intermediate_steps"]), told["output"]
    except (SyntaxError, ValueError, TypeError, KeyError):
        taken, last = [], response
    for number, (action, observed) in enumerate(taken, 3):
        given, call = action["tool_input"], f"c{number}"
        arguments = given if isinstance(given, dict) else {"input": given}
        content = observed if isinstance(observed, str) else json.dumps(observed)
        steps.append(
            {
                "step_id": number,
                "source": "agent",
                "message": action["log"],
                "tool_calls": [{"tool_call_id": call, "function_name": action["tool"], "arguments": arguments}],
                "observation": {"results": [{"source_call_id": call, "content": content}]},
            }
        )
    steps.append(
        {"step_id": len(steps) + 1, "source": "agent", "message": last if isinstance(last, str) else str(last)}
    )
    about = {"name": "workbench-agent", "version": agent}
    return {
        "schema_version": "ATIF-v1.8",
        "trajectory_id": run,
        "agent": about,
        "steps": steps,
        "extra": {"error": error},
    }


def _literal(node: ast.expr) -> Any:
    """A value as Python writes it, where calls are data: `AgentAction(tool=…)`, and `array([…], dtype=object)`."""
    match node:
        case ast.Call(args=[first, *_]):
            return _literal(first)
        case ast.Call():
            return {word.arg: _literal(word.value) for word in node.keywords}
        case ast.Dict():
            return {_literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
        case ast.List() | ast.Tuple():
            return [_literal(each) for each in node.elts]
        case ast.Name(id="nan"):
            return None
    return ast.literal_eval(node)


def runs(folder: Path, tools: Sequence[dict[str, Any]] = ()) -> Iterator[Run]:
    """Every recorded run of agents that are held out. `tools` are what the product would know of them."""
    csv.field_size_limit(sys.maxsize)
    before, off = outcomes.tables(), [name for name, detector in DETECTORS.items() if not detector.is_on]
    for agent in (*AGENTS, *KIN):
        for domain in outcomes.FILES.values():
            [path] = (folder / "data/results" / domain).glob(f"{agent}_*.csv")
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            for number, (row, task) in enumerate(zip(rows, outcomes.tasks(domain), strict=True)):
                assert row["query"] == task.prompt
                told = atif(row["query"], row["full_response"], row["error"], f"{domain}-{agent}-{number}", agent)
                [parsed] = parse_jsonl([json.dumps(told).encode()], "atif")
                assert parsed.trace
                # WorkBench cannot read a call back that has a line break; that is no fault of the agent's.
                calls = [call.replace("\n", "\\n") for call in ast.literal_eval(row["function_calls"])]
                correct, side_effects = outcomes.judged(before, task, calls, row["error"])
                every = detect(parsed.trace, Context(tools=tools))
                on = detect(parsed.trace, Context(tools=tools, without=off))
                yield Run(agent, domain, task.slice, parsed.trace, not correct, side_effects, on, every)


def share(found: Sequence[Run], counts: Callable[[Run], bool]) -> str:
    """The share of these runs that count, with its 95 % interval by the task's template."""
    return shown(clustered_rate([float(counts(run)) for run in found], [run.template for run in found]))


def by_agent(found: Sequence[Run]) -> str:
    head = ("agent", "runs that fail", "recall", "precision", "false alarms")
    held_out = [run for run in found if run.agent in AGENTS]
    without_weakest = [run for run in held_out if run.agent != WEAKEST]
    groups = [(name, [run for run in found if run.agent == agent]) for agent, name in AGENTS.items()]
    groups += [("**all of them**", held_out), (f"all but {AGENTS[WEAKEST]}", without_weakest)]
    groups += [(f"{name} (kin)", [run for run in found if run.agent == agent]) for agent, name in KIN.items()]
    return table(head, [(name, *_rates(mine)) for name, mine in groups])


def _rates(found: Sequence[Run]) -> Iterator[str]:
    yield share(found, lambda run: run.fails)
    yield share([run for run in found if run.fails], lambda run: bool(run.proposals))
    yield share([run for run in found if run.proposals], lambda run: run.fails)
    yield share([run for run in found if not run.fails], lambda run: bool(run.proposals))


def by_detector(found: Sequence[Run]) -> str:
    """Of each detector: the share of the runs it proposes something for that fail, and that have a side effect."""
    head = ("detector", "by default", "run fails", "side effect", *AGENTS.values())
    said = []
    for name, detector in DETECTORS.items():
        told = [run for run in found if run.agent in AGENTS and run.of(name)]
        if told:
            counts = (_of(run for run in told if run.agent == agent) for agent in AGENTS)
            shares = share(told, lambda run: run.fails), share(told, lambda run: run.side_effects)
            said.append((f"`{name}`", "on" if detector.is_on else "off", *shares, *counts))
    return table(head, said)


def _of(told: Iterable[Run]) -> str:
    fails = [run.fails for run in told]
    return f"{sum(fails)} of {len(fails)}" if fails else "·"


def tables(folder: Path) -> str:
    """What `docs/design/detectors.md` shows of agents that are held out."""
    plain, declared = list(runs(folder)), list(runs(folder, DEFINITIONS))
    return "\n\n".join(
        (
            "No tools are declared:",
            by_agent(plain),
            "Tools are declared, with those that change something marked as unsafe:",
            by_agent(declared),
            "Each detector, with tools declared; at each agent the runs that fail, of those it proposes something for:",
            by_detector(declared),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="a clone of github.com/olly-styles/WorkBench")
    print(tables(parser.parse_args().runs))


if __name__ == "__main__":
    main()
