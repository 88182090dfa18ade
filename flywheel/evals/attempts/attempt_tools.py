"""The tools of an attempt's world, for its program: what may be called, and one call.

Each call is answered by the environment's own `respond`, after everything that was done before it, under the lock of
the attempt's row: calls that come together are carried out one after the other. No world is kept anywhere.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.agents.models import Version
from flywheel.core import envs
from flywheel.core.digests import canonical
from flywheel.core.envs.environment import Environment
from flywheel.core.traces import Message, ToolCall, openai_messages
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion
from flywheel.environments.tasks.task_rows import core_task
from flywheel.evals.attempts import attempt_lifecycle
from flywheel.evals.attempts.program_rollouts import ToolUse
from flywheel.evals.models import ProgramAttempt
from flywheel.trajectories.formats.values.hostile_json import plain, text

log = logging.getLogger(__name__)

MOST_USES = 500
"""Calls in one turn of an attempt."""
NAME_MAX, SHOWN = 200, 500
USES_MAX = 4 * 2**20
"""Bytes of the calls of one turn with their results, as they are stored."""


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
    """Carry out one call. Raises Refused, and Stale and Over where the attempt has ended."""
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
    with transaction.atomic():
        held = ProgramAttempt.objects.select_for_update(of=["self"]).select_related("key", "task", "run__version")
        row = held.get(pk=attempt.pk)
        attempt_lifecycle.refuse_over(row)
        if len(row.uses) >= MOST_USES:
            raise Refused(f"at most {MOST_USES} calls are carried out in one turn", field="name")
        done = [ToolUse.from_json(each) for each in row.uses]
        called = openai_messages.names(env.tools).get(name, name)
        given = [*(Message.from_json(message) for message in row.messages), *_messages(done)]
        call = ToolCall(f"use-{len(done)}", called, dict(arguments))
        try:
            reply = env.respond(core_task(row.task), [*given, Message("assistant", tool_calls=(call,))], row.seed)
        except Exception as error:
            log.exception("the tools of attempt %s raised", row.pk)
            raise Refused(f"the environment raised {type(error).__name__}: {text(str(error))[:SHOWN]}") from error
        results = [text(message.content) for message in reply if message.role == "tool"]
        made = ToolUse(timezone.now(), called, dict(arguments), "\n".join(results) if reply else None)
        row.uses = [*row.uses, made.to_json()]
        if len(canonical(row.uses)) > USES_MAX:
            raise Refused(f"the calls of one turn and their results may have {USES_MAX >> 20} MiB together")
        row.save(update_fields=["uses"])
    return made


def _messages(done: Sequence[ToolUse]) -> list[Message]:
    found = []
    for number, each in enumerate(done):
        call = ToolCall(f"use-{number}", each.name, dict(each.arguments))
        found += [
            Message("assistant", tool_calls=(call,)),
            Message("tool", each.result or "", tool_call_id=call.id, name=call.name),
        ]
    return found
