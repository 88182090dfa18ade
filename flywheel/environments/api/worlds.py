"""Worlds of a team's own Python for programs: trying one, writing its tasks, saying what is right in a play."""

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.core.envs.worlds import own_world
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.api.environments import find_environment
from flywheel.environments.api.playground import get_play
from flywheel.environments.api.tasks import TaskOut
from flywheel.environments.models import Task, WorldTrial
from flywheel.environments.playground import played_targets
from flywheel.environments.tasks import own_tasks
from flywheel.environments.versions import world_trials

router = Router(tags=["environments"])


class WorldTrialIn(Body):
    config: dict[str, Any]
    """For your own Python: `{"source", "start", "system_prompt", "max_turns", "token_limit"}`, all optional except
    `source`. For a tool server: `{"base_url", "protocol", "api_key_env", "resets", "shows_state"}`, all optional except
    `base_url`."""
    seed: int = Field(0, ge=0, le=own_world.LARGEST_SEED)
    """Seed that the world starts with."""
    tool: str = Field("", max_length=200)
    """Name of the tool to call; none if omitted."""
    arguments: dict[str, Any] = {}
    """Arguments of the call, by name."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same trial."""


class WorldTrialOut(Schema):
    id: int
    state: str
    tools: list[dict[str, Any]]
    """Tool definitions from the source, or from the tool server once a worker has queried it; use them as `tools` in an
    environment's `config`."""
    report: dict[str, Any]
    """`{"beginning", "state", "answer", "fault", "trace", "is_same", "ms"}`, once a worker has tried it."""
    error: str

    @staticmethod
    def resolve_tools(row: WorldTrial) -> list[dict[str, Any]]:
        return world_trials.tools_of(row)


class OwnTaskIn(Body):
    prompt: str = Field(max_length=own_tasks.LONGEST_REQUEST)
    """The user's request."""
    state: dict[str, Any] = {}
    """`{"seed", "state"}`: the seed for `reset`, and the task's own state."""
    target: dict[str, Any] | None = None
    """`{"wanted": [item, …], "solution": [{"tool", "arguments"}, …]}`. If omitted, the task is a draft until you play
    it and set its target."""
    group: str = Field("", max_length=200)
    """Tasks of one group are in the same split."""
    slice: str = Field("", max_length=100)
    """Name of a slice, by which results are also reported."""


class RightIn(Body):
    paths: list[str] | None = None
    """The changes to the world that are wanted; all of them if omitted."""
    rest_same: bool = True
    """Nothing else in the world may change."""
    calls_wanted: bool = False
    """The same tool calls are wanted, in any order."""
    words: str = Field("", max_length=own_tasks.LONGEST_REQUEST)
    """Answer in words that is wanted; empty for none."""


@router.post("/world-trials", response={202: WorldTrialOut}, auth=Key(Scope.BUILD))
def try_world(request: HttpRequest, wanted: WorldTrialIn) -> Status[WorldTrial]:
    """Try an unsaved world in the background: start it and make a call, twice."""
    job = world_trials.submit(
        project=keyed(request).project,
        config=wanted.config,
        actor=keyed(request).actor,
        key=wanted.key or uuid.uuid4(),
        seed=wanted.seed,
        tool=wanted.tool,
        arguments=wanted.arguments,
    )
    return Status(202, job)


@router.get("/world-trials/{int:trial}", response=WorldTrialOut, auth=Key(Scope.BUILD))
def get_world_trial(request: HttpRequest, trial: int) -> WorldTrial:
    """Return a trial of a world, with its report once a worker has finished it."""
    return one(WorldTrial.objects.filter(project=keyed(request).project), pk=trial)


@router.post("/environments/{name}/tasks/own", response={201: TaskOut}, auth=Key(Scope.BUILD))
def write_task(request: HttpRequest, name: str, wanted: OwnTaskIn) -> Status[Task]:
    """Create a task in a world; a worker proves it."""
    made = own_tasks.write(
        environment=find_environment(request, name),
        actor=keyed(request).actor,
        prompt=wanted.prompt,
        state=wanted.state,
        target=wanted.target,
        group=wanted.group,
        slice_=wanted.slice,
    )
    return Status(201, made)


@router.post("/plays/{play}/right", response=TaskOut, auth=Key(Scope.BUILD))
def say_right(request: HttpRequest, play: int, wanted: RightIn) -> Task:
    """Set the target of a draft task from the episode that was played."""
    row = get_play(request, play)
    paths = [each.path for each in played_targets.changed(row)] if wanted.paths is None else wanted.paths
    target = played_targets.target_of(
        row, paths=paths, rest_same=wanted.rest_same, calls_wanted=wanted.calls_wanted, words=wanted.words
    )
    return played_targets.make(row, target, keyed(request).actor)
