"""Targets of tasks, out of playing it oneself: the state that was left behind, the calls, the words."""

from collections.abc import Collection
from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.core.envs.replay.end_states import Change, changes
from flywheel.core.traces import tooling
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Play, Task
from flywheel.environments.playground.episode_moves import conversation, unanswered, waiting
from flywheel.environments.tasks.own_tasks import complete, is_draft

MOST_CHANGES = 200
"""Changes that people can look through and choose from."""


def changed(play: Play) -> list[Change]:
    """List all that the moves have changed in the world."""
    return list(changes(play.world["beginning"], play.world["now"])) if play.world else []


def why_not(play: Play) -> str:
    """Why the play says nothing of what is wanted; empty where it can."""
    if not is_draft(play.task):
        return "its task has its target already"
    if waiting(play) is not None or unanswered(play) or play.world is None:
        return "the world has not answered yet"
    return too_many(play) if play.moves else "no move was made yet"


def too_many(play: Play) -> str:
    """Why nobody can choose from its changes: half a list would pass for all of it. Empty where one can."""
    count = len(changed(play))
    most = f"and {MOST_CHANGES} are the most to choose from; send a task with its target to the API instead"
    return f"{count} places of the world changed, {most}" if count > MOST_CHANGES else ""


def words_of(play: Play) -> str:
    """The words of the last move."""
    said = [message for message in conversation(play) if message.role == "assistant"]
    return said[-1].content if said else ""


def target_of(play: Play, *, paths: Collection[str], rest_same: bool, calls_wanted: bool, words: str) -> dict[str, Any]:
    """The target that a play makes: those of its changes, that nothing else changes, its calls, an answer in words.
    The calls that were made are its solution, whether they are wanted themselves or not. Raises Refused."""
    made = [call for message in conversation(play) if message.role == "assistant" for call in tooling.calls_of(message)]
    solution = [{"tool": call.name, "arguments": call.arguments} for call in made]
    found = [each for each in changed(play) if each.path in paths]
    state: dict[str, Any] = {"type": "state", "paths": {each.path: each.after for each in found if not each.is_gone}}
    if gone := [each.path for each in found if each.is_gone]:
        state["gone"] = gone
    state["rest"] = "same" if rest_same else "any"
    wanted: list[dict[str, Any]] = [state] if found or rest_same else []
    wanted += [{"type": "calls", "calls": solution, "order": "any"}] if calls_wanted and solution else []
    wanted += [{"type": "words", "text": words.strip()}] if words.strip() else []
    if not found and not (calls_wanted and solution) and not words.strip():
        raise Refused("choose a change, the calls or words: else who does nothing would be right")
    return {"wanted": wanted, "solution": solution}


def make(play: Play, target: dict[str, Any], actor: Actor) -> Task:
    """The play's task with this target. Raises Refused and VerifierError."""
    if problem := why_not(play):
        raise Refused(problem)
    return complete(play.task, target, actor)
