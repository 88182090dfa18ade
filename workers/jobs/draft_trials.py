"""Trying what nobody has saved yet: a verifier on examples, a world with a call. The worker's side of
`environments.versions.trials` and `world_trials`."""

import time
from typing import Any

from flywheel.core.envs import Task
from flywheel.core.envs.worlds import server_world
from flywheel.core.envs.worlds.own_world import KIND, OwnWorld
from flywheel.core.traces import ToolCall, tooling
from flywheel.core.verifiers import WorldError
from flywheel.edge.jobs import Lease
from flywheel.environments.models import Trial, WorldTrial
from flywheel.environments.versions import trials, world_trials
from flywheel.trajectories.formats.values.hostile_json import plain
from workers.judging import project_judges
from workers.worlds import world_sessions
from workers.worlds.tool_servers import ToolServers, read_tools


def try_verifier(lease: Lease) -> None:
    """Task after task, each shown as soon as it is there."""
    trial = Trial.objects.select_related("environment__project", "project").get(pk=lease.job.pk)
    shown = list(trial.report.get("tasks", []))
    runners = project_judges.runners(trial.project, trial.verifier, lease=lease)
    for report in trials.reports(trial, runners):
        lease.go_on()
        shown.append(report)
        if void := project_judges.void_of(runners):
            shown = trials.taken_back(shown, void)
        lease.update(report={"tasks": shown, "judges": project_judges.report_of(runners)}, done=len(shown))


def try_world(lease: Lease) -> None:
    """Begin it and make the call, and then all of that once more: what differs could not be judged."""
    trial = WorldTrial.objects.select_related("project").get(pk=lease.job.pk)
    if world_trials.is_server(trial.config):
        servers = project_judges.tool_servers(trial.project)
        report = look_at_server(servers, trial.config, trial.seed, trial.tool, trial.arguments)
    else:
        report = look_at(trial.config, trial.seed, trial.tool, trial.arguments)
    lease.update(report=plain(report), done=1)


def look_at(config: dict[str, Any], seed: int, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The report of a trial."""
    world = OwnWorld(config, {"kind": KIND})
    episode = world.episode(Task("", "", {}, {"seed": seed}), [ToolCall("", tool, arguments)] if tool else [])
    began = time.monotonic()
    report: dict[str, Any] = {"beginning": None}
    try:
        first = world_sessions.run(episode, None, 0, ())
        report["beginning"] = first["shown"]
        told = world_sessions.run(episode, first["state"], 0, episode.calls)
        again = world_sessions.run(episode, None, 0, episode.calls)
    except WorldError as error:
        return {**report, "fault": str(error), "ms": _milliseconds(began)}
    answer = told["answers"][0] if told["answers"] else None
    return {
        **report,
        "state": told["shown"],
        "answer": answer["text"] if answer else None,
        "trace": answer["trace"] if answer else [],
        "is_same": (told["shown"], told["answers"]) == (again["shown"], again["answers"]),
        "ms": _milliseconds(began),
    }


def look_at_server(
    servers: ToolServers, config: dict[str, Any], seed: int, tool: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The report of a trial of a tool server, with the definitions that it has."""
    server, began = server_world.server_of(config), time.monotonic()
    report: dict[str, Any] = {"beginning": None, "trace": []}
    seen = []
    try:
        for _ in range(2):
            with servers.session(server) as line:
                line.begin(seed, {"prompt": "", "state": None})
                report["tools"] = read_tools(line)
                report["beginning"] = line.state() if server.shows_state else None
                if tool and (problem := tooling.call_error(report["tools"], tool, arguments, {})):
                    return {**report, "fault": f"{tool}: {problem}", "ms": _milliseconds(began)}
                answer = line.call(tool, arguments) if tool else None
                seen.append((report["tools"], answer, line.state() if server.shows_state else None))
    except WorldError as error:
        return {**report, "fault": str(error), "ms": _milliseconds(began)}
    _, answer, state = seen[0]
    return {**report, "state": state, "answer": answer, "is_same": seen[0] == seen[1], "ms": _milliseconds(began)}


def _milliseconds(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
