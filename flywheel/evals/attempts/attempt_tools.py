"""The tools of an attempt's world, for its program: what may be called, and one call.

Each call is answered by the environment's own `respond`, after everything that was done before it: calls that come
together are carried out one after the other. What is pure is answered here, under the lock of the attempt's row. A
world that only a worker plays is asked by the worker that has the eval (`waiting_calls`).
"""

import copy
import functools
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.agents.models import Version
from flywheel.core import envs
from flywheel.core.envs.environment import Environment
from flywheel.core.envs.kinds import players
from flywheel.core.envs.nemo_gym import NemoGym
from flywheel.core.envs.worlds.own_world import CALLS_AT_ONCE, MOST_TURNS, OwnWorld, world_of
from flywheel.core.envs.worlds.stand_ins import server_of
from flywheel.core.traces import Message, ToolCall, openai_messages
from flywheel.core.verifiers import GymError
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion
from flywheel.environments.tasks.task_rows import core_task
from flywheel.evals.attempts import waiting_calls
from flywheel.evals.attempts.program_rollouts import ModelCall, ToolUse, actions, turn_limit, turns_of
from flywheel.evals.models import ProgramAttempt
from flywheel.trajectories.formats.values.hostile_json import plain, text

log = logging.getLogger(__name__)

NAME_MAX, SHOWN = 200, 500


def environment_of(attempt: ProgramAttempt) -> Environment:
    """The world of this attempt, as its version meets it."""
    return _environment(attempt.run.task_set.environment_version_id, attempt.run.version_id)


@functools.lru_cache(64)
def _environment(world: int, version: int) -> Environment:
    """Neither of the two ever changes."""
    of = EnvironmentVersion.objects.select_related("environment").get(pk=world)
    agent = Version.objects.get(pk=version).config()
    return envs.build(of.environment.kind, of.config, of.verifier, agent=agent)


def definitions(attempt: ProgramAttempt) -> list[dict[str, Any]]:
    """The tools as chat completions take them."""
    tools = openai_messages.chat_tools(environment_of(attempt).tools)
    for tool in tools:
        tool["function"]["name"] = openai_messages.outside(tool["function"]["name"])
    return tools


def use(attempt: ProgramAttempt, name: str, arguments: Any) -> ToolUse:
    """Carry out one call, or have a worker carry it out where only one can. Raises Refused, and Stale and Over where
    the attempt has ended."""
    if not isinstance(arguments, Mapping):
        raise Refused("send the arguments as a JSON object", field="arguments")
    if len(name) > NAME_MAX:
        raise Refused(f"has {len(name)} characters; no tool has such a name", field="name")
    if text(name) != name:
        raise Refused("holds a NUL or half a character; no tool has such a name", field="name")
    if plain(arguments) != arguments:
        raise Refused(
            "cannot be stored: leave out NUL, halves of characters, and numbers beyond 64 bits", field="arguments"
        )
    env = environment_of(attempt)
    called = openai_messages.names(env.tools).get(name, name)
    version = attempt.run.task_set.environment_version
    if players(version.environment.kind, version.config):
        return waiting_calls.have_carried_out(attempt, called, dict(arguments))
    with transaction.atomic():
        row = waiting_calls.locked(attempt)
        try:
            made = carry_out(env, row, called, dict(arguments))
        except Exception as error:
            log.exception("the tools of attempt %s raised", row.pk)
            raise Refused(f"the environment raised {type(error).__name__}: {text(str(error))[:SHOWN]}") from error
        waiting_calls.store(row, made)
        row.save(update_fields=["uses"])
    return made


def carry_out(env: Environment, row: ProgramAttempt, name: str, arguments: dict[str, Any]) -> ToolUse:
    """The environment's answer to a call, after all that was done before it. Raises whatever the environment raises."""
    done = [ToolUse.from_json(each) for each in row.uses]
    begun = [Message.from_json(message) for message in row.messages]
    world, at_once = world_of(env), 1
    if limit := turn_limit(env, begun):
        owner, most = limit
        if _is_over(owner.tools, most, row, begun, [*done, ToolUse(timezone.now(), name, arguments, "")]):
            return ToolUse(timezone.now(), name, arguments, None)
    if world is not None:
        env, at_once = _unlimited(world), CALLS_AT_ONCE
    call = ToolCall(f"use-{len(done)}", name, arguments)
    given = [*begun, *_messages(done, at_once), Message("assistant", tool_calls=(call,))]
    task = core_task(row.task)
    reply = env.respond(task, given, row.seed)
    if not reply and isinstance(env, NemoGym):
        raise GymError(env.why_unanswered(task, given))
    results = [text(message.content) for message in reply if message.role == "tool"]
    return ToolUse(timezone.now(), name, arguments, "\n".join(results) if reply else None)


def is_repeatable(env: Environment) -> bool:
    """Whether an attempt, or a call, can be made again there without being carried out twice."""
    server = server_of(env)
    return server is None or server.resets


def model_calls(row: ProgramAttempt) -> list[ModelCall]:
    """The model calls that the gateway has carried and recorded, in order."""
    spans = [span for span in row.key.spans.all() if not span.is_own] if row.key else []
    ended = ((span.started_at + timedelta(milliseconds=span.content["ms"] or 0), span.content) for span in spans)
    return [ModelCall.from_json(at, content) for at, content in sorted(ended, key=lambda pair: pair[0])]


def _is_over(
    tools: Sequence[Mapping[str, Any]],
    most: int,
    row: ProgramAttempt,
    begun: Sequence[Message],
    uses: Sequence[ToolUse],
) -> bool:
    """Whether the last of these calls belongs to a turn beyond the `most` that there are. One that may yet turn out to
    be of the same message as others, since a model call is not recorded yet, does not."""
    if turns_of(begun) + len(uses) <= most or row.key is None:
        return False
    calls = model_calls(row)
    acts = actions(calls, uses, None, tools=tools, owns_tools=True)
    made = [act.message for act in acts if act.message.tool_calls]
    return turns_of([*begun, *made]) > most and row.key.calls <= len(calls)


def _unlimited(world: OwnWorld) -> OwnWorld:
    """The world for one more call, whose turn was counted already: here calls of one message come one by one."""
    found = copy.copy(world)
    found.max_turns = MOST_TURNS
    return found


def _messages(done: Sequence[ToolUse], at_once: int) -> list[Message]:
    """Messages of what was done, so many calls in each."""
    found: list[Message] = []
    calls = [ToolCall(f"use-{number}", each.name, dict(each.arguments)) for number, each in enumerate(done)]
    for start in range(0, len(done), at_once):
        some = slice(start, start + at_once)
        found.append(Message("assistant", tool_calls=tuple(calls[some])))
        for call, each in zip(calls[some], done[some], strict=True):
            found.append(Message("tool", each.result or "", tool_call_id=call.id, name=call.name))
    return found
