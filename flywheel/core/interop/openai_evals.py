"""Evals of OpenAI's hosted service, as their objects were downloaded: an eval with its graders, a run with its data and
its request, and rows of items.

A grader becomes a part of a rubric. Of each is said whether it was taken, taken with a difference, or left, and why;
nothing else of the objects is dropped without a note. What a grader compares with is filled in for each item, into the
target of its task: `{"wanted", "item", "references": {part: text}}`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from flywheel.core.digests import canonical
from flywheel.core.envs import Task
from flywheel.core.errors import FieldError
from flywheel.core.interop import episode_rows
from flywheel.core.interop.eval_graders import GRADERS, Left, Part, fill, read_grader, variables
from flywheel.core.interop.foreign_tasks import CannotTake, about_row, is_held_out, outside_names
from flywheel.core.traces import json_schemas, tooling
from flywheel.core.traces.openai_messages import text

State = Literal["taken", "changed", "left"]
MARKER, OBJECT = r"<\|[^|<>]{1,40}\|>", r"\A\s*\{\s*\"(?s:.*)\}\s*\z"
GUARD = "plain_words"
MOST_GRADERS = 100
_ANSWER_LIKE = ("correct_label", "label", "reference", "expected", "category", *episode_rows.ANSWERS)
_BELONGS = ("id", "example_id", "split", "cluster", "slice", "category", "synthetic")
_KNOWN = {
    "eval": {"id", "object", "name", "created_at", "metadata", "data_source_config", "testing_criteria"},
    "run": {"id", "object", "name", "created_at", "metadata", "eval_id", "model", "status", "data_source", "error"},
}
_RESULTS = {"report_url", "result_counts", "per_model_usage", "per_testing_criteria_results", "share_with_openai"}


class CannotRead(FieldError):
    """The files hold no eval that could be taken."""


@dataclass(frozen=True, slots=True)
class Grader:
    """A grader of the eval and what became of it."""

    name: str
    type: str
    state: State
    words: str
    """What is judged here, or why nothing is."""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class HostedEval:
    name: str
    graders: tuple[Grader, ...]
    request: Any
    """A template of the user's words, or of chat messages; empty where the eval does not say."""
    items: tuple[Any, ...] = ()
    """The rows that become tasks: those that a run brought along, unless others were sent."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    """What else was not taken."""

    @property
    def parts(self) -> list[Part]:
        return [part for grader in self.graders for part in grader.parts]

    @property
    def left(self) -> list[Grader]:
        return [grader for grader in self.graders if grader.state == "left"]

    @property
    def verifier(self) -> dict[str, Any]:
        """The rubric. An answer with the markers of a template, or that is an object where words are wanted, is none;
        where a grader may want just that, nothing is said of it."""
        takes_any = any(
            part.settings.get("path") or part.settings["type"] in ("python", "judge") for part in self.parts
        )
        lacks = [MARKER] if takes_any else [MARKER, OBJECT]
        lacks = [each for each in lacks if not any(map(json_schemas.pattern(each).search, self._references()))]
        rows = [{"name": part.name, "weight": part.weight, **part.settings} for part in self.parts]
        if lacks:
            guard = {"type": "regex", "pattern": "|".join(lacks), "must": "lack"}
            rows.append({"name": GUARD, "weight": 0, "required": True, **guard})
        return {"kind": "rubric", "parts": rows}

    def _references(self) -> Iterator[str]:
        """Yield what the graders compare with, of every item."""
        for row in self.items:
            item = row.get("item", row) if isinstance(row, dict) else None
            if not isinstance(item, dict):
                continue
            for part in self.parts:
                with suppress(CannotTake):
                    yield fill(part.reference, item)

    def task_of(self, row: Any) -> Task:
        """The task of an item. Raises CannotTake."""
        if not isinstance(row, dict):
            raise CannotTake("it is not a JSON object")
        item = row.get("item", row)
        if not isinstance(item, dict) or not item:
            raise CannotTake("expected an object", field="item")
        references = {part.name: fill(part.reference, item) for part in self.parts if part.reference}
        request = fill_all(self.request, item)
        about = _about(row) | _about(item)
        if is_held_out(split := _about(row).get("split")):
            about["split"] = split
        pure = episode_rows.task_of({**about, "prompt": request, "answer": "-"}, self.tools)
        target = {"wanted": self._right_items(references, item), "item": item, "references": references}
        return replace(pure, target=target)

    def _right_items(self, references: Mapping[str, str], item: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Items that say an answer which the graders would pass, as far as they tell."""
        telling = sorted((part for part in self.parts if part.tells), key=lambda part: part.tells)
        if of_fields := [part for part in telling if part.settings.get("path")]:
            answer: dict[str, Any] = {}
            for part in of_fields:
                *outer, last = str(part.settings["path"]).split(".")
                inside: Any = answer
                for name in outer:
                    inside = inside.setdefault(name, {}) if isinstance(inside, dict) else None
                if not isinstance(inside, dict) or isinstance(inside.setdefault(last, references[part.name]), dict):
                    problem = "one grader compares it as a text, and another a field in it"
                    raise CannotTake(problem, field=f"sample.output_json.{part.settings['path']}")
            return [{"type": "words", "text": canonical(answer).decode()}]
        known = [references[part.name] for part in telling]
        known += [str(item[name]) for name in _ANSWER_LIKE if isinstance(item.get(name), str | int | float)]
        right = next((each for each in known if each.strip()), "")
        return [{"type": "words", "text": right}] if right else [{"type": "avoid", "tools": []}]

    @property
    def knows_answers(self) -> bool:
        """Whether a grader says what a right answer is."""
        return any(part.tells for part in self.parts)


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say where a row belongs, and nothing of what is asked or right."""
    return {name: value for name, value in about_row(row).items() if name in _BELONGS}


def fill_all(template: Any, item: Mapping[str, Any]) -> Any:
    """A request with its variables filled in; a template that is one variable is what the item has there."""
    if isinstance(template, str):
        whole = template.strip()
        found = list(variables(whole))
        if len(found) == 1 and found[0].text == whole and isinstance(value := found[0].value_in(item), list):
            return value
        return fill(template, item)
    return [{**message, "content": fill(text(message["content"]), item)} for message in template]


def read(document: Any, request: str = "") -> HostedEval:
    """Read the objects of one eval: itself, with or without its runs, or a grader alone. Raises CannotRead.

    `request` is a template that says what the user asks, where the objects do not, or otherwise than they do.
    """
    try:
        found = [each for each in _objects(document) if isinstance(each, dict)]
    except RecursionError:
        raise CannotRead("it is nested too deeply") from None
    evals = [each for each in found if isinstance(each.get("testing_criteria"), list)]
    alone = [each for each in found if isinstance(each.get("type"), str) and each["type"] in GRADERS]
    runs = [each for each in found if isinstance(each.get("data_source"), dict)]
    if len(evals) > 1:
        raise CannotRead(f"it holds {len(evals)} evals; take one after the other")
    if not evals and not alone:
        raise CannotRead("it holds no eval: expected an object with testing_criteria, or a grader")
    about: Mapping[str, Any] = evals[0] if evals else {"testing_criteria": alone}
    if (count := len(about["testing_criteria"])) > MOST_GRADERS:
        raise CannotRead(f"{count} graders are too many; {MOST_GRADERS} are the most", field="testing_criteria")
    graders = tuple(_graders(about["testing_criteria"]))
    notes = [*_unread("eval", about), *(note for run in runs for note in _unread("run", run))]
    notes += [f"only the last of its {len(runs)} runs is read"] if len(runs) > 1 else []
    source = runs[-1]["data_source"] if runs else {}
    own, more = _own_request(source)
    notes += more
    tools, more = _tools(source)
    notes += more
    rows, more = _rows(source)
    notes += more
    asked = request.strip() or own or _likely_request(about, graders)
    return HostedEval(str(about.get("name") or ""), graders, asked, tuple(rows), tools, tuple(dict.fromkeys(notes)))


def _objects(document: Any) -> Iterator[Any]:
    """The objects of a file: one, a list, an answer of the API that lists some, or `{"eval": …, "runs": […]}`."""
    if isinstance(document, list):
        for each in document:
            yield from _objects(each)
    elif isinstance(document, dict):
        yield document
        for name in ("eval", "run", "runs", "data"):
            if isinstance(document.get(name), dict | list) and "testing_criteria" not in document:
                yield from _objects(document[name])
        if "testing_criteria" in document:
            yield from _objects(document.get("runs") or [])


def _graders(criteria: Sequence[Any]) -> Iterator[Grader]:
    names: set[str] = {GUARD}
    for place, row in enumerate(criteria):
        row = row if isinstance(row, dict) else {}
        name, kind = str(row.get("name") or f"grader {place + 1}")[:200], str(row.get("type") or "none")
        try:
            parts, words, is_same = read_grader(row, names)
        except Left as error:
            yield Grader(name, kind, "left", str(error))
            continue
        yield Grader(name, kind, "taken" if is_same else "changed", words, tuple(parts))


def _unread(kind: str, about: Mapping[str, Any]) -> list[str]:
    odd = sorted(set(about) - _KNOWN[kind] - _RESULTS - {"runs", "eval", "run", "data"})
    notes = [f"the {kind}'s {name} is not read" for name in odd[:10]]
    notes += ["the eval's metadata is not kept"] if kind == "eval" and about.get("metadata") else []
    if kind == "run" and about.get("result_counts"):
        notes.append("results of runs are not taken; run an eval here")
    config = about.get("data_source_config")
    if isinstance(config, dict) and config.get("type") in ("logs", "stored_completions"):
        notes.append(f"its data were {config['type']} of the service; only rows that are sent along become tasks")
    return notes


def _own_request(source: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The request that a run sends, without its system prompt, and what of it is not taken."""
    given = source.get("input_messages")
    if not isinstance(given, dict):
        return "", []
    if given.get("type") == "item_reference" and isinstance(given.get("item_reference"), str):
        return "{{" + given["item_reference"] + "}}", []
    template = given.get("template") or []
    if not isinstance(template, list):
        raise CannotRead("expected a list of messages", field="data_source.input_messages.template")
    rows = [row for row in template if isinstance(row, dict)]
    kept = [row for row in rows if row.get("role") not in ("system", "developer")]
    notes = (
        ["its system prompt is not taken: the version that is tested brings its own"] if len(kept) < len(rows) else []
    )
    messages = [{"role": str(row.get("role", "user")), "content": text(_content(row))} for row in kept]
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"], notes
    return messages or "", notes


def _content(row: Mapping[str, Any]) -> Any:
    content = row.get("content")
    return [content] if isinstance(content, dict) else content


def _tools(source: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    sampling = source.get("sampling_params")
    if not isinstance(sampling, dict):
        return [], []
    given = tooling.definitions(sampling.get("tools") or [])
    notes = (
        ["its sampling is not taken: the version that is tested brings its own"] if set(sampling) - {"tools"} else []
    )
    if problems := tooling.check_definitions(given):
        return [], [*notes, f"its tools are not taken: {problems[0]}"]
    try:
        outside_names(given)
    except CannotTake as error:
        return [], [*notes, f"its tools are not taken: {error.problem}"]
    return list(given), notes


def _rows(source: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    inner = source.get("source")
    if not isinstance(inner, dict):
        return [], []
    if isinstance(inner.get("content"), list):
        return list(inner["content"]), []
    return [], [f"the run's data ({inner.get('type', 'elsewhere')}) is not in the file; send its rows along"]


def _likely_request(about: Mapping[str, Any], graders: Sequence[Grader]) -> str:
    """The field of the items that is most likely the request; empty where nothing tells."""
    config = about.get("data_source_config")
    schema = config.get("item_schema") if isinstance(config, dict) else None
    if not isinstance(schema, dict) and isinstance(config, dict):  # as the service gives an eval back
        whole = config.get("schema")
        inner = whole.get("properties", {}) if isinstance(whole, dict) else {}
        if not isinstance(inner, dict):
            raise CannotRead("expected an object", field="data_source_config.schema.properties")
        schema = inner.get("item")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    names = list(properties) if isinstance(properties, dict) else []
    compared = {each.path.partition(".")[0] for grader in graders for part in grader.parts
                for each in variables(part.reference)}  # fmt: skip
    likely = [name for name in episode_rows.REQUESTS if name in names]
    rest = [name for name in names if name not in compared]
    likely += sorted(rest, key=lambda name: any(word in name.lower() for word in _ANSWER_LIKE))
    return f"{{{{item.{likely[0]}}}}}" if likely else ""
