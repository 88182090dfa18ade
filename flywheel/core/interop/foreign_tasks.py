"""Tasks out of other people's data: NeMo Gym's rows, rows of a verifiers dataset, WorkBench's, and tasks that were
exported here.

A row fits where it wants tool calls: one for `tool_call`, any number for `workplace`, all to tools of the environment.
For an environment that is a NeMo Gym server, a row of its data is taken whole: its server knows what it means. Rows for
`episode`, which takes words too, are read by `episode_rows`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from flywheel.core.digests import digest
from flywheel.core.envs import Task, nemo_gym
from flywheel.core.envs.worlds import own_world, server_world
from flywheel.core.errors import FieldError
from flywheel.core.traces.openai_messages import arguments, names, text
from flywheel.core.verifiers import VerifierError

KINDS = ("tool_call", "workplace", nemo_gym.KIND, own_world.KIND, server_world.KIND)
WORKBENCH = "WorkBench"
_HELD_OUT = ("held_out", "heldout", "validation", "valid", "val", "test", "eval", "sealed", "set_aside")
_REQUEST = ("prompt", "question", "query")
_CALLS = "expected_calls"
_WANTED = ("ground_truth", _CALLS, "target", "answer")


class CannotTake(FieldError):
    """The row is no task of this kind."""


def source_of(row: Mapping[str, Any]) -> str:
    """Whose row it seems to be, in words."""
    if isinstance(row.get("responses_create_params"), dict):
        return "NeMo Gym rollout" if "reward" in row and "response" in row else "NeMo Gym"
    if isinstance(row.get("traces"), list):
        return "verifiers attempts"
    if "completion" in row:
        return "verifiers results"
    if "query" in row and _CALLS in row:
        return WORKBENCH
    if isinstance(row.get("item"), dict):
        return "eval items"
    return "exported here" if isinstance(row.get("target"), dict) else "verifiers dataset"


def task_of(row: Any, kind: str, tools: Sequence[Mapping[str, Any]]) -> Task:
    """The task that a row tells of. Raises CannotTake."""
    if kind not in KINDS:
        raise CannotTake(f"tasks of kind {kind} are no tool calls; those of {', '.join(KINDS)} can be taken")
    if not isinstance(row, dict):
        raise CannotTake("it is not a JSON object")
    if kind == nemo_gym.KIND:
        return _whole(row, tools)
    if isinstance(row.get("traces"), list):
        raise CannotTake("it is an attempt and no task; import it as a trajectory", field="traces")
    about = about_row(row)
    if is_held_out(split := about.get("split")):
        raise CannotTake(
            f"it is of the split {split} where it comes from, and here it might be trained on", field="split"
        )
    prompt = _request_text(row)
    if kind in (own_world.KIND, server_world.KIND):
        return _own(row, about, prompt, tools)
    calls = _calls(about, outside_names(tools))
    if kind == "tool_call" and len(calls) != 1:
        raise CannotTake(f"it wants {len(calls)} calls, and a task of kind tool_call one", field=_name_of(about))
    target = {**calls[0]} if kind == "tool_call" else {"calls": calls}
    state = about.get("state")
    template = str(about.get("template") or "") if source_of(row) == WORKBENCH else ""
    name = str(row.get("id", row.get("example_id", "")))[:100]
    return described(Task(name, prompt, target, state if isinstance(state, dict) else {}), about, template)


def _own(row: Mapping[str, Any], about: Mapping[str, Any], prompt: str, tools: Sequence[Mapping[str, Any]]) -> Task:
    """A task of a world of one's own: its target says what is wanted, in the words of that kind, or which calls."""
    target, state = row.get("target"), row.get("state", {})
    if not isinstance(state, dict):
        raise CannotTake('expected {"seed": number, "state": …}', field="state")
    if not isinstance(target, dict) or "wanted" not in target:
        calls = _calls(about, outside_names(tools))
        target = {"wanted": [{"type": "calls", "calls": calls, "order": "any"}] if calls else []}
    try:
        own_world.check_task(tools, state, target)
    except VerifierError as error:
        raise CannotTake(error.problem, field=error.field) from None
    return described(Task(str(row.get("id", ""))[:100], prompt, target, state), about)


def described(task: Task, about: Mapping[str, Any], template: str = "") -> Task:
    """The task with its source and its slice: those that its row names, or else its template's or the request's own."""
    cluster = about.get("cluster") or (template and f"template {template}")
    if not cluster:  # of rows that name no source, equal requests are one
        cluster = f"taken {digest(' '.join(task.prompt.lower().split()))[:16]}"
    return replace(
        task,
        cluster=str(cluster)[:200],
        slice=str(about.get("slice") or about.get("category") or template)[:100],
        synthetic=about.get("synthetic") is True,
    )


def is_held_out(split: Any) -> bool:
    """Whether a row of this split, in somebody's words, is not trained on where it comes from."""
    given = split if isinstance(split, list) else [split]
    return any(re.sub(r"[\s-]+", "_", str(each).strip().lower()) in _HELD_OUT for each in given)


def outside_names(tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Our tools' names by those outside. Raises CannotTake where two would have one."""
    try:
        return names(tools)
    except ValueError as error:
        raise CannotTake(str(error), field="tools") from None


def _whole(row: dict[str, Any], tools: Sequence[Mapping[str, Any]]) -> Task:
    """A row as its own server knows it. Its split elsewhere does not matter: here it is only measured on."""
    params = row.get("responses_create_params")
    if not isinstance(params, dict):
        raise CannotTake("a row of NeMo Gym's data has it", field="responses_create_params")
    if "response" in row and "reward" in row:
        raise CannotTake("it is an attempt and no task; import it as a trajectory", field="response")
    try:
        opening = nemo_gym.opening(row)
    except ValueError as error:
        raise CannotTake(str(error), field="responses_create_params.input") from None
    ours, theirs = {tool["name"] for tool in tools}, _tool_names(params.get("tools") or [])
    if odd := sorted(ours ^ theirs):
        where = "only here" if odd[0] in ours else "not here"
        raise CannotTake(
            f"{odd[0][:100]!r} is {where}: the tools must be the same", field="responses_create_params.tools"
        )
    kept = {**row, "responses_create_params": {name: value for name, value in params.items() if name != "tools"}}
    about = about_row(row)
    target: dict[str, Any] = {"row": kept}
    with suppress(CannotTake):
        target["calls"] = _calls(about, {name: name for name in ours})
    state = {"row": digest(kept)[:16]}
    return described(Task(str(row.get("id", ""))[:100], opening[-1].content, target, state), about)


def about_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the fields that a row has beside its request, wherever they stand."""
    more = [row[name] for name in ("verifier_metadata", "info", "extra_info") if isinstance(row.get(name), dict)]
    # No calls at all may be what is right; any other field that is empty says nothing.
    return {key: value for each in [*more, row] for key, value in each.items() if value or (key, value) == (_CALLS, [])}


def _tool_names(given: Any) -> set[str]:
    try:
        return {tool["name"] for tool in nemo_gym.tools_of(given)}
    except VerifierError as error:
        raise CannotTake(str(error), field="responses_create_params.tools") from None


def _request_text(row: Mapping[str, Any]) -> str:
    """Return the user's one request, leaving out what a system prompt may say before it."""
    params = row.get("responses_create_params")
    if isinstance(params, dict):
        field, given = "responses_create_params.input", params.get("input")
    else:
        field = next((name for name in _REQUEST if name in row), "prompt")
        given = row.get(field)
    if isinstance(given, str):
        asked = [given]
    else:
        messages = given if isinstance(given, list) else []
        asked = [
            text(each.get("content")) for each in messages if isinstance(each, dict) and each.get("role") == "user"
        ]
    asked = [words for words in asked if words.strip()]
    if len(asked) != 1:
        raise CannotTake(f"it has {len(asked)} requests of a user, and a task has one", field=field)
    return asked[0]


def _name_of(about: Mapping[str, Any]) -> str:
    """The field that says what is right; empty where none does."""
    return next((name for name in _WANTED if name in about), "")


def _calls(about: Mapping[str, Any], ours: Mapping[str, str]) -> list[dict[str, Any]]:
    field = _name_of(about)
    if not field:
        raise CannotTake(f"it says nowhere which calls are right ({', '.join(_WANTED)})")
    return wanted_calls(field, about[field], ours)


def wanted_calls(field: str, given: Any, ours: Mapping[str, str]) -> list[dict[str, Any]]:
    """The calls that a field says are right, in our words. Raises CannotTake."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise CannotTake("the right answer is a text; expected a tool call", field=field) from None
    if isinstance(given, dict):
        given = given.get("calls", [given])
    if not isinstance(given, list):
        raise CannotTake("what is right is no list of calls", field=field)
    return [_call(f"{field}.{number}", each, ours) for number, each in enumerate(given)]


def _call(field: str, given: Any, ours: Mapping[str, str]) -> dict[str, Any]:
    inner = given.get("function") if isinstance(given, dict) else None
    row = inner if isinstance(inner, dict) else given if isinstance(given, dict) else None
    keys = ("name", "tool", "function_name", "function")
    name = next((row[key] for key in keys if row.get(key)), None) if row else None
    if row is None or not isinstance(name, str):
        raise CannotTake("a call that is right has no name", field=field)
    known = {**ours, **{own: own for own in ours.values()}}
    if name not in known:
        raise CannotTake(f"this environment has no tool {name[:100]!r}", field=field)
    found = arguments(row.get("arguments", {}))
    if not isinstance(found, dict):
        raise CannotTake(f"the arguments of {name[:100]} are no JSON object", field=f"{field}.arguments")
    return {"tool": known[name], "arguments": found}
