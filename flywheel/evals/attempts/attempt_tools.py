"""The tools of an attempt's world, for its program: what may be called, and one call.

Each call is answered by the environment's own `respond`, after everything that was done before it: calls that come
together are carried out one after the other. What is pure is answered here, under the lock of the attempt's row. A
world that only a worker plays is asked by the worker that has the eval (`waiting_calls`).
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.agents.models import Version
from flywheel.core import envs
from flywheel.core.envs.environment import Environment
from flywheel.core.envs.kinds import KINDS
from flywheel.core.traces import Message, ToolCall, openai_messages
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion
from flywheel.environments.tasks.task_rows import core_task
from flywheel.evals.attempts import waiting_calls
from flywheel.evals.attempts.program_rollouts import ToolUse
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
    if KINDS[attempt.run.task_set.environment_version.environment.kind].runner:
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
    given = [*(Message.from_json(message) for message in row.messages), *_messages(done)]
    call = ToolCall(f"use-{len(done)}", name, arguments)
    reply = env.respond(core_task(row.task), [*given, Message("assistant", tool_calls=(call,))], row.seed)
    results = [text(message.content) for message in reply if message.role == "tool"]
    return ToolUse(timezone.now(), name, arguments, "\n".join(results) if reply else None)


def _messages(done: Sequence[ToolUse]) -> list[Message]:
    found = []
    for number, each in enumerate(done):
        call = ToolCall(f"use-{number}", each.name, dict(each.arguments))
        found += [
            Message("assistant", tool_calls=(call,)),
            Message("tool", each.result or "", tool_call_id=call.id, name=call.name),
        ]
    return found
