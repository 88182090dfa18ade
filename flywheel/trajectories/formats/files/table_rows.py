"""Rows of a table (CSV, Parquet) as trajectories, by a mapping from our fields to its columns.

`guess` proposes a mapping from the columns' names and the first rows; a person changes it on the page, a program gives
it as JSON: `{"input": "question", "output": "answer", "metadata": ["plan"]}`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.traces import Message, Trace, count
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import Turn, of_score, read_turns, steps_of
from flywheel.trajectories.formats.messages.sampling import sampling
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_list, load, plain, quote, structured
from flywheel.trajectories.formats.values.times import moment


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    help: str
    names: tuple[str, ...]
    """Columns that usually mean it."""


_FIELDS = (
    (
        "messages",
        "Messages",
        "JSON list of chat messages; replaces the next three",
        "messages conversation conversations dialog chat trajectory",
    ),
    ("system", "System prompt", "text", "system system_prompt instructions"),
    (
        "input",
        "Input",
        "what the user said: text, or JSON messages",
        "input prompt question query request user user_input instruction problem",
    ),
    (
        "output",
        "Output",
        "what the agent answered: text, or JSON messages",
        "output completion answer response assistant generation reply prediction",
    ),
    ("id", "Id", "the same id twice is the same trajectory", "trace_id traceid id uuid run_id request_id row_id"),
    (
        "session",
        "Session",
        "never split between training and held-out",
        "session_id sessionid session conversation_id thread_id chat_id",
    ),
    ("user", "Person", "who asked", "user_id userid customer_id client_id"),
    (
        "time",
        "Time",
        "ISO 8601, or seconds or milliseconds since 1970",
        "timestamp created_at time when date started_at start_time datetime created",
    ),
    (
        "outcome",
        "Outcome",
        "success or failed, yes or no, 1 or 0",
        "outcome success correct passed is_correct resolved label reward score",
    ),
    ("agent", "Agent", "its name", "agent agent_name app service"),
    ("version", "Version", "of the agent", "version release agent_version"),
    ("model", "Model", "that answered", "model model_name llm engine"),
    ("environment", "Deployment", "production, staging, …", "environment env deployment"),
    ("tags", "Tags", "JSON list, or words with commas between", "tags"),
    ("tools", "Tools", "JSON list of tool definitions", "tools functions tool_definitions"),
    ("tokens_in", "Tokens in", "a number", "tokens_in input_tokens prompt_tokens"),
    ("tokens_out", "Tokens out", "a number", "tokens_out output_tokens completion_tokens"),
    ("prompt_token_ids", "Prompt token ids", "JSON list of numbers", "prompt_token_ids prompt_ids"),
    ("token_ids", "Completion token ids", "JSON list of numbers", "token_ids completion_token_ids completion_ids"),
    ("logprobs", "Log-probabilities", "JSON list, one a token", "logprobs completion_logprobs log_probs"),
    ("mask", "Loss mask", "JSON list of 0 and 1, one a token", "mask completion_mask loss_mask"),
)
FIELDS = {name: Field(name, label, help, tuple(names.split())) for name, label, help, names in _FIELDS}
ALL = "*"
"""As the metadata: all unmapped columns else."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """Which column means what."""

    columns: dict[str, str] = field(default_factory=dict)
    """Our field's name to theirs."""
    metadata: tuple[str, ...] | None = None
    """Columns that are kept as metadata; None for all that mean nothing else."""

    @property
    def is_usable(self) -> bool:
        return bool({"messages", "input", "output"} & set(self.columns))

    def to_json(self) -> dict[str, Any]:
        return {**self.columns, "metadata": ALL if self.metadata is None else list(self.metadata)}


def read_mapping(value: Any, columns: Sequence[str]) -> Mapped:
    """A mapping from JSON (or its text). Raises FormatError, naming what is wrong."""
    if isinstance(value, str):
        value = load(value)
    if not isinstance(value, Mapping):
        raise FormatError('mapping: expected an object, such as {"input": "question", "output": "answer"}')
    chosen: dict[str, str] = {}
    metadata: tuple[str, ...] | None = ()
    for name, column in value.items():
        if name == "metadata":
            metadata = None if column == ALL else tuple(column) if isinstance(column, list | tuple) else (column,)
            for one in metadata or ():
                _checked_column(f"mapping.{name}", one, columns)
        elif name not in FIELDS:
            raise FormatError(f"mapping: {quote(name)} is not one of {', '.join([*FIELDS, 'metadata'])}")
        elif column:
            chosen[name] = _checked_column(f"mapping.{name}", column, columns)
    found = Mapped(chosen, metadata)
    if not found.is_usable:
        raise FormatError("mapping: a column for messages, input or output is needed")
    return found


def _checked_column(place: str, column: Any, columns: Sequence[str]) -> str:
    if not isinstance(column, str) or column not in columns:
        raise FormatError(f"{place}: {quote(column)} is not one of the columns {', '.join(columns)}"[:500])
    return column


def guess(columns: Sequence[str], rows: Iterable[Mapping[str, Any]] = ()) -> Mapped:
    """The likeliest mapping: by name, and checked against what the first rows hold."""
    sample = list(rows)
    found: dict[str, str] = {}
    left = {column.strip().lower().replace(" ", "_").replace("-", "_"): column for column in columns if column}
    for item in FIELDS.values():
        for name in item.names:
            if (column := left.get(name)) is not None and _fits(item.name, [row.get(column) for row in sample]):
                found[item.name] = column
                del left[name]
                break
    return Mapped({name: found[name] for name in FIELDS if name in found})


def _fits(name: str, values: list[Any]) -> bool:
    given = [value for value in values if value not in (None, "")]
    if not given:
        return True
    if name == "outcome":
        return any(of_score(value) is not None for value in given)
    if name == "time":
        return sum(moment(value) is not None for value in given) * 2 >= len(given)
    if name in ("tokens_in", "tokens_out"):
        return all(count(value) is not None for value in given)
    if name in ("messages", "prompt_token_ids", "token_ids", "logprobs", "mask", "tools"):
        return all(isinstance(structured(value), list) for value in given)
    return True


# A row


def trace_of(row: Mapping[str, Any], mapping: Mapped) -> Trace:
    """Raises FormatError, naming the column."""
    given: dict[str, Any] = plain(dict(row))
    cells = {name: given.get(column) for name, column in mapping.columns.items()}
    turns = _turns(cells, mapping)
    if not turns:
        raise FormatError(f"{_column(mapping, 'messages', 'input', 'output')}: empty, expected at least one message")
    _measured(turns, cells, mapping)
    known = set(mapping.columns.values())
    kept = [name for name in given if name not in known] if mapping.metadata is None else mapping.metadata
    metadata = {name: structured(given[name]) for name in kept if given.get(name) not in (None, "")}
    reward = cells.get("outcome")
    outcome = of_score(reward)
    if reward not in (None, "") and outcome is None:
        metadata.setdefault(mapping.columns["outcome"], reward)
    own = message_shapes.as_text(cells.get("id"))
    return Trace(
        trace_id=message_shapes.trace_id(own, content=["row", own]) if own else message_shapes.trace_id(content=given),
        steps=steps_of(turns),
        agent=message_shapes.as_text(cells.get("agent")),
        version=message_shapes.as_text(cells.get("version")),
        session_id=message_shapes.as_text(cells.get("session")),
        user_id=message_shapes.as_text(cells.get("user")),
        environment=message_shapes.as_text(cells.get("environment")),
        tools=message_shapes.tool_definitions(cells.get("tools")),
        outcome=outcome,
        tags=_tags(cells.get("tags")),
        metadata=metadata,
    )


def _turns(cells: dict[str, Any], mapping: Mapped) -> list[Turn]:
    if cells.get("messages") not in (None, ""):
        return _turns_of(cells["messages"], mapping.columns["messages"], "user")
    turns = []
    for name, role in (("system", "system"), ("input", "user"), ("output", "assistant")):
        if cells.get(name) not in (None, ""):
            turns += _turns_of(cells[name], mapping.columns[name], role)
    return turns


def _turns_of(value: Any, column: str, role: str) -> list[Turn]:
    decoded = structured(value)
    if isinstance(decoded, dict) and "messages" in decoded:
        decoded = decoded["messages"]
    if isinstance(decoded, dict) and "role" in decoded:
        decoded = [decoded]
    if isinstance(decoded, list) and decoded and all(isinstance(item, dict) for item in decoded):
        if all("from" in item and "value" in item for item in decoded):  # ShareGPT
            decoded = [
                {"role": _SHARED.get(str(item["from"]), item["from"]), "content": item["value"]} for item in decoded
            ]
        return read_turns(Row({column: decoded}), column)
    text = message_shapes.as_text(value)
    return [Turn(Message(message_shapes.ROLES[role], text), {"role": role, "content": text})]


_SHARED = {
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}


def _measured(turns: list[Turn], cells: dict[str, Any], mapping: Mapped) -> None:
    """Set the start of all turns, and the model, tokens and sampling of the last answer, from the row."""
    if (given := cells.get("time")) not in (None, ""):
        at = moment(given)
        if at is None:
            raise FormatError(f"{mapping.columns['time']}: {quote(given)} is not a time such as 2026-01-31T12:00:00Z")
        for turn in turns:
            turn.started_at = at
    answer = next((turn for turn in reversed(turns) if turn.message.role == "assistant"), None)
    if answer is None:
        return
    answer.model = message_shapes.as_text(cells.get("model"))
    answer.tokens_in, answer.tokens_out = count(cells.get("tokens_in")), count(cells.get("tokens_out"))
    lists = {name: _list(cells, name, mapping) for name in ("prompt_token_ids", "token_ids", "logprobs", "mask")}
    answer.sampling = sampling(
        prompt=lists["prompt_token_ids"], tokens=lists["token_ids"], logprobs=lists["logprobs"], mask=lists["mask"]
    )


def _list(cells: dict[str, Any], name: str, mapping: Mapped) -> Any:
    value = cells.get(name)
    if value in (None, ""):
        return None
    decoded = structured(value)
    if not isinstance(decoded, list):
        raise FormatError(f"{mapping.columns[name]}: {quote(value)} is not a list")
    return decoded


def _tags(value: Any) -> list[str]:
    decoded = structured(value)
    if isinstance(decoded, str):
        decoded = [word.strip() for word in decoded.split(",")]
    return [tag for tag in as_list(decoded) if isinstance(tag, str) and tag]


def _column(mapping: Mapped, *names: str) -> str:
    return " and ".join(mapping.columns[name] for name in names if name in mapping.columns) or "the row"


def decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose cells of JSON text are decoded and whose empty cells are gone: what a format may recognise."""
    return {key: structured(value) for key, value in row.items() if value not in (None, "")}


def shown(mapping: Mapped) -> str:
    return json.dumps(mapping.to_json(), ensure_ascii=False)
