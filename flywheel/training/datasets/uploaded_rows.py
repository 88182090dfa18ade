"""Rows of a file that somebody uploads, read one by one: conversations, prompts, preferences, thumbs and attempts.

    reading = read_rows(file)         holds one line at a time
    reading.lines()                   the good ones, one after the other
    reading.problems                  what is wrong with the others so far, by line and field

Known are OpenAI's `messages` and preferences, ShareGPT's `conversations`, and TRL's `prompt`/`completion`,
`prompt`/`chosen`/`rejected` (the prompt may be in both instead) and `prompt`/`completion`/`label`; and a `prompt` with
`attempts`, each a `completion` and its `score`. A file is JSON Lines, JSON, CSV or Parquet, also compressed with gzip;
all its rows are of one kind.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from flywheel.core.traces import Message, openai_messages
from flywheel.edge.refusals import Refused
from flywheel.training.datasets import attempt_scores, dataset_builder
from flywheel.training.models import Dataset
from flywheel.trajectories.formats.files import file_values, table_rows
from flywheel.trajectories.formats.files.file_limits import Bounds, Item, TooMuch
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import Turn, read_turns
from flywheel.trajectories.formats.openai.preferences import PAIRS
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, plain, quote, structured

MOST_LINES = 500_000
MOST_MESSAGES = 500
"""Of one line."""
MOST_CHARACTERS = 1_000_000
"""Of one line's messages."""
KEPT = 200
"""Problems that are told one by one, and the others counted."""

SPEAKERS = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}
"""ShareGPT's `from`."""
THUMBS = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class Problem:
    at: str
    """`line 3`, `item 3`, `row 3`."""
    field: str
    """Empty where it is not one field's fault."""
    reason: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file: its rows."""

    at: str
    talks: list[list[Message]]
    """All that is learnt from it: of a preference both conversations."""
    rows: list[dict[str, Any]]
    """They share their messages."""
    size: int = 0
    """Characters that its rows take."""


class Reading:
    """A file that is read line by line: what it holds, and what is wrong with the lines that were read so far."""

    def __init__(self, source: BinaryIO, kind: str, most: int | None, seconds: float | None) -> None:
        """Raises FormatError for a file that cannot be read at all."""
        content = file_values.read(source, Bounds(seconds=seconds))
        self.most = most
        self.is_cut = False
        """Whether there is more than the `most` lines that somebody wants to look at."""
        self.format = content.kind
        self.kind = kind
        """A value of `Dataset.Kind`; empty while no line could be read."""
        self.read = 0
        """Lines, good and bad."""
        self.problems: list[Problem] = []
        """The first `KEPT` of them."""
        self.problem_count = 0
        self._items = map(_decoded, content.items) if content.is_table else content.items

    def lines(self) -> Iterator[Line | None]:
        """The good lines, and None for each other one. A file that breaks off is good as far as it can be read."""
        rows = written = 0
        try:
            for item in self._items:
                if self.read == self.most:
                    self.is_cut = True
                    return
                if self.read == MOST_LINES or rows > dataset_builder.MOST_ROWS:
                    raise TooMuch(f"more than {MOST_LINES:,} lines or {dataset_builder.MOST_ROWS:,} rows")
                self.read += 1
                line = self._line(item, dataset_builder.MOST_CHARACTERS - written)
                if line is not None:
                    rows, written = rows + len(line.rows), written + line.size
                yield line
        except FormatError as error:
            self._note(Problem("the rest", "", str(error)))

    def _line(self, item: Item, left: int) -> Line | None:
        try:
            if item.error:
                raise FormatError(item.error)
            given = plain(item.value)
            kind = kind_of(given)
            _refuse_null(kind, given)
            root = Row({name: value for name, value in given.items() if value is not None})
            if kind != (self.kind or kind):
                raise FormatError(f"is a row of {Dataset.Kind(kind).label}; the file holds {_label(self.kind)}")
            line = READERS[kind](item.at, root)
            _check_size(line.talks)
            line = replace(line, size=_written(line, left))
        except FormatError as error:
            self._note(Problem(item.at, *_parts(str(error))))
        except (AttributeError, TypeError):
            self._note(Problem(item.at, "", "is not an object"))
        else:
            self.kind = kind
            return line
        return None

    def _note(self, problem: Problem) -> None:
        self.problem_count += 1
        if len(self.problems) < KEPT:
            self.problems.append(problem)


def read_rows(source: BinaryIO, kind: str = "", *, most: int | None = None, seconds: float | None = None) -> Reading:
    """Read a file of rows of this kind, or of the first good line's; `most` lines of it, where only a look is wanted.
    Raises Refused for a file that cannot be read."""
    try:
        return Reading(source, kind, most, seconds)
    except FormatError as error:
        raise Refused(f"the file cannot be read: {error}", field="file") from None


def kind_of(row: Mapping[str, Any]) -> str:
    """The kind of a row, by its fields, also where they hold nothing: a thumb that nobody gave makes no demonstration.
    Raises FormatError for none that is known."""
    if any(good in row and bad in row for good, bad in PAIRS):
        return Dataset.Kind.PAIRS
    if "attempts" in row:
        return Dataset.Kind.SCORED
    if "completion" in row:
        return Dataset.Kind.THUMBS if "label" in row else Dataset.Kind.SFT
    if "messages" in row or "conversations" in row:
        return Dataset.Kind.SFT
    if "prompt" in row:
        return Dataset.Kind.PROMPTS
    raise FormatError("has none of messages, conversations, prompt, attempts, or chosen and rejected")


def _refuse_null(kind: str, row: Mapping[str, Any]) -> None:
    """Raise FormatError for a field that a row of this kind needs and holds nothing."""
    needed = {
        Dataset.Kind.PAIRS.value: next((pair for pair in PAIRS if pair[0] in row and pair[1] in row), ()),
        Dataset.Kind.THUMBS.value: ("completion", "label"),
        Dataset.Kind.SCORED.value: ("attempts",),
        Dataset.Kind.PROMPTS.value: ("prompt",),
        Dataset.Kind.SFT.value: tuple(name for name in ("completion", "messages", "conversations") if name in row),
    }[kind]
    empty = [name for name in needed if row[name] is None]
    # A table has a column for each way in which some row says it.
    if empty and not (kind == Dataset.Kind.SFT and len(empty) < len(needed)):
        raise FormatError(f"{empty[0]}: is null")


def _label(kind: str) -> str:
    return Dataset.Kind(kind).label if kind else "no rows"


def _decoded(item: Item) -> Item:
    return item if item.error else Item(item.at, table_rows.decoded(item.value), size=item.size)


def _parts(problem: str) -> tuple[str, str]:
    """The field that an error names, and what it says of it."""
    name, _, reason = problem.partition(": ")
    return (name, reason) if reason and " " not in name else ("", problem)


def _conversation(at: str, root: Row) -> Line:
    """A row for each thing that the assistant says; `"weight": 0` and `"train": false` keep one from being learnt."""
    if "completion" in root.value:
        before, said = _prompt(root), _turns(root, "completion", "assistant")
        turns, learnt = [*before, *said], range(len(before), len(before) + len(said))
    else:
        key = "messages" if "messages" in root.value else "conversations"
        if isinstance(structured(root.value[key]), str):
            raise FormatError(f"{key}: {quote(root.value[key])} is no list of messages")
        turns = _turns(root, key)
        learnt = range(len(turns))
    _check(turns)
    messages = [turn.message for turn in turns]
    whole = _row(at, root, prompt=messages)
    written = whole["prompt"]
    rows = [
        {**whole, "prompt": written[:place], "completion": written[place : place + 1]}
        for place in learnt
        if place and messages[place].role == "assistant" and not _is_masked(turns[place].raw)
    ]
    if not rows:
        raise FormatError("messages: nothing that the assistant says after somebody else, so nothing to learn")
    return Line(at, [messages], rows)


def _is_masked(raw: Mapping[str, Any]) -> bool:
    return raw.get("weight") == 0 or raw.get("train") is False


def _preference(at: str, root: Row) -> Line:
    good, bad = next(pair for pair in PAIRS if pair[0] in root.value and pair[1] in root.value)
    before = [turn.message for turn in _prompt(root)]
    chosen, rejected = (_turns(root, name, "assistant") for name in (good, bad))
    _check([*map(Turn, before), *chosen], good)
    _check([*map(Turn, before), *rejected], bad)
    one, other = ([turn.message for turn in turns] for turns in (chosen, rejected))
    if not before:
        same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        if not same:
            raise FormatError(f"{good}: has no common beginning with {bad}, and there is no prompt")
        before, one, other = one[:same], one[same:], other[same:]
    for name, said in ((good, one), (bad, other)):
        if not any(message.role == "assistant" for message in said):
            raise FormatError(f"{name}: says nothing of the assistant’s")
    if one == other:
        raise FormatError(f"{bad}: is the same as {good}")
    asked, also = ([message.content for message in said if message.role == "user"] for said in (one, other))
    if asked != also:
        raise FormatError(f"{bad}: a user says something else in it than in {good}")
    return Line(at, [[*before, *one], [*before, *other]], [_row(at, root, prompt=before, chosen=one, rejected=other)])


def _thumb(at: str, root: Row) -> Line:
    given = root.value["label"]
    label = THUMBS.get(given.strip().lower() if isinstance(given, str) else given) if _is_plain(given) else None
    if label is None:
        raise FormatError(f"label: {quote(given)} is neither true nor false")
    before, said = _prompt(root), _turns(root, "completion", "assistant")
    _check([*before, *said])
    prompt, answer = ([turn.message for turn in turns] for turns in (before, said))
    if not prompt or not answer:
        raise FormatError(f"{'completion' if prompt else 'prompt'}: is empty")
    return Line(at, [[*prompt, *answer]], [_row(at, root, prompt=prompt, completion=answer) | {"label": label}])


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | str)


def _attempts(at: str, root: Row) -> Line:
    """A group of attempts at one request: a row for each thing that the assistant says in one, with its score."""
    before = _prompt(root)
    if not before:
        raise FormatError("prompt: is empty")
    group = root.text("group") or f"uploaded {at}"
    listed = Row({"attempts": structured(root.value["attempts"])}).list("attempts")
    if not listed:
        raise FormatError("attempts: is empty")
    if len(listed) > MOST_MESSAGES:
        raise FormatError(f"attempts: {len(listed)} of them, and {MOST_MESSAGES} is the most of a line")
    talks, rows = list[list[Message]](), list[dict[str, Any]]()
    for number, value in enumerate(listed):
        tried = Row(value, f"attempts[{number}]")
        about = {"score": _score(tried), "group": group, "attempt": f"{at}, attempt {number + 1}"}
        said = _turns(tried, "completion", "assistant")
        _check([*before, *said], tried.at("completion"))
        messages = [turn.message for turn in (*before, *said)]
        whole = _row(at, root, prompt=messages)
        written = whole["prompt"]
        places = [place for place in range(len(before), len(messages)) if messages[place].role == "assistant"]
        if not places:
            raise FormatError(f"{tried.at('completion')}: says nothing of the assistant’s")
        about |= _recorded(tried, len(places))
        talks.append(messages)
        rows += [
            {**whole, "prompt": written[:place], "completion": written[place : place + 1], **about} for place in places
        ]
    return Line(at, talks, rows)


def _score(tried: Row) -> float:
    value: Any = tried.value.get("score")
    if not _is_number(value) or not attempt_scores.LEAST <= value <= attempt_scores.MOST:
        wanted = f"a number from {attempt_scores.LEAST:g} to {attempt_scores.MOST:g}"
        raise FormatError(f"{tried.at('score')}: {quote(value)} is not {wanted}")
    return float(value)


def _recorded(tried: Row, answers: int) -> dict[str, list[float]]:
    """The log-probabilities of an answer's tokens, where the attempt has them."""
    found = tried.list("logprobs")
    if found and answers > 1:
        raise FormatError(f"{tried.at('logprobs')}: belong to one answer, and the attempt has {answers}")
    for place, value in enumerate(found):
        if not _is_number(value) or value > 0:
            raise FormatError(f"{tried.at('logprobs')}[{place}]: {quote(value)} is not a number of at most 0")
    return {"logprobs": [float(value) for value in found]} if found else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _bare_prompt(at: str, root: Row) -> Line:
    turns = _prompt(root)
    _check(turns)
    messages = [turn.message for turn in turns]
    if not messages or messages[-1].role not in ("user", "tool"):
        raise FormatError("prompt: does not end with a user’s message")
    return Line(at, [messages], [_row(at, root, prompt=messages)])


READERS = {
    Dataset.Kind.SFT.value: _conversation,
    Dataset.Kind.PAIRS.value: _preference,
    Dataset.Kind.THUMBS.value: _thumb,
    Dataset.Kind.SCORED.value: _attempts,
    Dataset.Kind.PROMPTS.value: _bare_prompt,
}


def _prompt(root: Row) -> list[Turn]:
    if isinstance(root.value.get("input"), dict):
        return _turns(root.row("input"), "messages")
    return _turns(root, "prompt") if "prompt" in root.value else []


def _turns(root: Row, key: str, role: str = "user") -> list[Turn]:
    """The messages under a key. Raises FormatError, naming the field."""
    value = structured(root.value.get(key))
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, list):
        if len(value) > MOST_MESSAGES:
            raise FormatError(f"{root.at(key)}: {len(value)} messages, and {MOST_MESSAGES} is the most")
        value = [_spoken(row) for row in Row({key: value}, root.path).rows(key)]
    return read_turns(Row({key: value}, root.path), key, role)


def _spoken(row: Row) -> dict[str, Any]:
    """A message of ShareGPT in the shape of the others; any other as it is."""
    if "from" not in row.value or "role" in row.value:
        return row.value
    who = row.choice("from", list(SPEAKERS))
    said = row.value.get("value")
    call = structured(said) if who == "function_call" else None
    if isinstance(call, dict):
        return {**row.value, "role": "assistant", "content": "", "tool_calls": [{"id": "", "function": call}]}
    return {**row.value, "role": SPEAKERS[who], "content": said}


def _check(turns: Sequence[Turn], where: str = "messages") -> None:
    """Raise FormatError for what no chat template can render as it was meant."""
    waiting: list[str] = []
    for at, turn in enumerate(turns):
        message = turn.message
        if at and message.role == "system":
            raise FormatError(f"{where}[{at}].role: expected a system message in the first place, or none")
        for call in message.tool_calls:
            if not isinstance(call.arguments, dict):
                raise FormatError(f"{where}[{at}].tool_calls: the arguments of {quote(call.name)} are no JSON object")
            waiting.append(call.id)
        if message.role == "tool":
            if message.tool_call_id not in waiting and (message.tool_call_id or not waiting):
                raise FormatError(f"{where}[{at}].tool_call_id: the result of a call that was not made")
            waiting.remove(message.tool_call_id) if message.tool_call_id in waiting else waiting.pop(0)
        elif not message.content.strip() and not message.tool_calls:
            raise FormatError(f"{where}[{at}].content: is empty")


def _check_size(talks: Sequence[Sequence[Message]]) -> None:
    if (size := sum(len(message.content) for talk in talks for message in talk)) > MOST_CHARACTERS:
        raise FormatError(f"{size:,} characters, and {MOST_CHARACTERS:,} is the most of a line")


def _written(line: Line, left: int) -> int:
    """The characters of a line's rows. Raises FormatError where the dataset has no room for them."""
    if (size := dataset_builder.characters(line.rows)) > left:
        raise FormatError(
            f"{len(line.rows)} rows, each answer with all that came before it, are {size:,} characters; of "
            f"{dataset_builder.MOST_CHARACTERS:,} that a dataset may have {left:,} are left"
        )
    return size


def _row(at: str, root: Row, **messages: Sequence[Message]) -> dict[str, Any]:
    written = {name: [message.to_openai() for message in said] for name, said in messages.items()}
    row = {"task_id": f"uploaded {at}", "origin": "uploaded", **written}
    return row | ({"tools": tools} if (tools := _tools(root)) else {})


def _tools(root: Row) -> list[dict[str, Any]]:
    """The definitions of tools that the row brings. Raises FormatError for one that is none."""
    inner = root.value.get("input")
    given = (inner.get("tools") if isinstance(inner, dict) else None) or root.value.get("tools")
    listed = structured(given) if given else []
    if not isinstance(listed, list):
        raise FormatError(f"tools: {quote(given)} is not a list")
    for at, tool in enumerate(listed):
        if message_shapes.tool_definition(tool) is None:
            raise FormatError(f"tools[{at}]: has no name")
    return openai_messages.chat_tools(message_shapes.tool_definitions(listed))
