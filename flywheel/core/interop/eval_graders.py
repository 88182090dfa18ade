"""The graders of OpenAI's hosted evals as parts of a rubric: string check, text similarity, label and score model,
Python, and weighted sums of them.

Their templates name the item's fields, `{{item.answer}}`, and what the model said, `{{sample.output_text}}`.
"""

import ast
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from flywheel.core.interop.foreign_tasks import CannotTake
from flywheel.core.verifiers.attempt_places import MISSING, dig
from flywheel.core.verifiers.rubric import LARGEST_NUMBER, LONGEST_PROSE, LONGEST_SOURCE, LONGEST_TEXT, MOST_PARTS
from flywheel.core.verifiers.text_similarity import METRICS

CHECKS = {"eq": "be", "ne": "differ", "neq": "differ", "like": "contain", "ilike": "contain_any_case"}
_VARIABLE = re.compile(r"\{\{\s*(\w+)((?:\.[\w-]+|\[\d+\])*)\s*\}\}")
_MIRRORED = ("eq", "ne", "neq", "fuzzy_match", "gleu", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l")
"""Comparisons that are the same with their sides changed."""
_SAYS = {"eq": 1, "ilike": 2, "like": 2, "similarity": 3}
"""How well a grader's reference serves as a right answer; the least number best."""
_TOO_LONG = f"its messages are longer than a judge's criteria may be, {LONGEST_PROSE:,} characters"
_ANSWER, _ITEM = "the answer", "the reference's {}"
WRAPPED = '''{source}


def verify(trace, target):
    """Ask the imported grader as its service did: the sample that was drawn, and the item."""
    import json as _json

    def once(pairs):
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key stands twice in one object")
        return found

    try:
        said = _json.loads(trace["answer"], object_pairs_hook=once)
    except ValueError:
        said = None
    calls = [
        {{"type": "function", "function": {{"name": each["tool"], "arguments": _json.dumps(each["arguments"])}}}}
        for each in trace["calls"]
    ]
    message = {{"role": "assistant", "content": trace["answer"], "tool_calls": calls}}
    sample = {{
        "output_text": trace["answer"],
        "output_json": said,
        "output_tools": calls,
        "choices": [{{"message": message}}],
    }}
    mark = float(grade(sample, target["item"]))
    passes = mark >= {least}
    return {{"score": 1.0 if passes else max(0.0, min(mark, 0.99)), "reason": f"the grader gives {{mark:g}}"}}
'''


class Left(Exception):
    """The grader cannot be taken; the message says why."""


@dataclass(frozen=True, slots=True)
class Variable:
    text: str
    space: str
    """`item` or `sample`."""
    path: str

    def value_in(self, item: Mapping[str, Any]) -> Any:
        """Raises CannotTake."""
        found = dig(item, self.path) if self.path else dict(item)
        if found is MISSING or found is None:
            raise CannotTake("it is missing, and the eval names it", field=f"item.{self.path}")
        return found


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    settings: Mapping[str, Any]
    """Of the rubric's part, its type among them."""
    reference: str = ""
    """The template that it compares with."""
    tells: int = 0
    """How well its reference serves as a right answer, the least number best; 0 for not at all."""
    weight: float = 1.0


def variables(template: str) -> Iterator[Variable]:
    return map(_variable, _VARIABLE.finditer(template))


def _variable(match: re.Match[str]) -> Variable:
    return Variable(match[0], match[1], re.sub(r"\[(\d+)\]", r".\1", match[2]).lstrip("."))


def fill(template: str, item: Mapping[str, Any]) -> str:
    """The template with the item's values; what is no text is written as JSON. Raises CannotTake."""
    if "{{" in _VARIABLE.sub("", template):
        raise CannotTake(f"{template[:60]!r} names something in another form than {{{{item.name}}}}", field="item")
    values = {each.text: _written(each, item) for each in variables(template)}
    return _VARIABLE.sub(lambda match: values[match[0]], template)


def _written(variable: Variable, item: Mapping[str, Any]) -> str:
    if variable.space != "item":
        raise CannotTake(f"{variable.text} is no field of the item", field="item")
    value = variable.value_in(item)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_grader(row: Mapping[str, Any], names: set[str]) -> tuple[list[Part], str, bool]:
    """The parts that a grader becomes, what they judge in words, and whether that is just the same. Raises Left.

    `names` are those that parts have already.
    """
    read = GRADERS.get(str(row.get("type")))
    if read is None:
        raise Left(f"there is no such grader here, only {', '.join(GRADERS)}")
    parts, words, is_same = read(row)
    return [replace(part, **_named(part, names)) for part in parts], words, is_same


def _named(part: Part, names: set[str]) -> dict[str, Any]:
    """A name that a rubric takes, once; what it compares with stands in the target under it."""
    base = re.sub(r"[^a-z0-9_]+", "_", part.name.lower()).strip("_")[:30]
    base = base if base[:1].isalpha() and base not in ("unsafe", "form") else f"grader_{base}".rstrip("_")
    name = next(each for number in count(1) if (each := base if number == 1 else f"{base}_{number}") not in names)
    names.add(name)
    settings = {**part.settings, **({"target": f"references.{name}"} if part.reference else {})}
    return {"name": name, "settings": settings}


def _sides(row: Mapping[str, Any], how: str) -> tuple[str, str]:
    """The field of the answer that is looked at, empty for all of it, and the template that it is compared with."""
    one, other = row.get("input"), row.get("reference")
    if not isinstance(one, str) or not isinstance(other, str):
        raise Left("its input and its reference are to be texts")
    for given, wanted in ((one, other), (other, one))[: 2 if how in _MIRRORED else 1]:
        path = _answer_path(given)
        is_of_item = wanted and all(each.space == "item" for each in variables(wanted))
        if path is not None and is_of_item and "{{" not in _VARIABLE.sub("", wanted):
            return path, wanted
    raise Left(f"it compares {one[:60]!r} with {other[:60]!r}; one of them must be {{{{sample.output_text}}}} alone, "
               "or a field of {{sample.output_json}}, and the other made of the item")  # fmt: skip


def _answer_path(template: str) -> str | None:
    found = list(variables(template))
    if len(found) != 1 or found[0].text != template.strip() or found[0].space != "sample":
        return None
    head, _, path = found[0].path.partition(".")
    return path if (head == "output_text") == (not path) and head in ("output_text", "output_json") else None


def _string_check(row: Mapping[str, Any]) -> tuple[list[Part], str, bool]:
    operation = str(row.get("operation"))
    if operation not in CHECKS:
        raise Left(f"its operation {operation[:40]!r} is none of {', '.join(CHECKS)}")
    path, reference = _sides(row, operation)
    settings = {"type": "text", "compare": CHECKS[operation]} | ({"path": path} if path else {})
    words = f"{path or 'the answer'} must {CHECKS[operation].replace('_', ' ')}: {reference[:200]}"
    return [Part(_name(row), settings, reference, _SAYS.get(operation, 0))], words, True


def _text_similarity(row: Mapping[str, Any]) -> tuple[list[Part], str, bool]:
    metric = str(row.get("evaluation_metric"))
    if metric == "cosine":
        raise Left("cosine compares embeddings of a model, and none is asked here; fuzzy_match or a judge may do")
    if metric not in METRICS:
        raise Left(f"its metric {metric[:40]!r} is none of {', '.join(METRICS)}")
    path, reference = _sides(row, metric)
    least = _threshold(row)
    settings: dict[str, Any] = {"type": "similarity", "metric": metric} | ({"path": path} if path else {})
    settings |= {} if least is None else {"least": least}
    words = f"{metric} to {reference[:200]}" + ("" if least is None else f", passes from {least:g}")
    words += "; computed here, figures may differ by some hundredths"
    words += ", and are lower: no stems, no synonyms" if metric == "meteor" else ""
    return [Part(_name(row), settings, reference, _SAYS["similarity"])], words, False


def _threshold(row: Mapping[str, Any]) -> float | None:
    value = row.get("pass_threshold")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise Left(f"its pass_threshold {str(value)[:20]} is not above 0 and at most 1")
    return float(value)


def _model_grader(row: Mapping[str, Any]) -> tuple[list[Part], str, bool]:
    """A judge's criteria, made of the messages that the grader's model would get."""
    model, messages = row.get("model"), row.get("input")
    if not isinstance(model, str) or not model or not isinstance(messages, list):
        raise Left("it needs its model and its input messages")
    pieces = [_criteria(each) for each in messages]
    if row["type"] == "label_model":
        labels, passing = (row.get(name) for name in ("labels", "passing_labels"))
        if not isinstance(labels, list) or not isinstance(passing, list) or not passing:
            raise Left("it needs its labels and its passing_labels")
        failing = [str(each) for each in labels if each not in passing]
        pieces.append(f"Give the highest mark where the label is {_listed(passing)}, else 0 ({_listed(failing)}).")
        rule = f"passes as {_listed(passing)}"
    else:
        pieces.append(_score_rule(row))
        rule = pieces[-1]
    criteria = "\n\n".join(filter(None, pieces))
    if len(criteria.encode("utf-8", "replace")) > LONGEST_PROSE:
        raise Left(_TOO_LONG)
    settings = {"type": "judge", "criteria": criteria, "model": model, "target": "item", "top": 1}
    words = f"a judge asks {model[:100]}: {rule} It sees criteria, request, answer and the item, in Flywheel's own form"
    words += "; sampling_params are not taken" if row.get("sampling_params") else ""
    return [Part(_name(row), settings)], words, False


def _score_rule(row: Mapping[str, Any]) -> str:
    bounds = row.get("range") or [0, 1]
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(_is_number, bounds)):
        raise Left("its range is to be two numbers")
    least = row.get("pass_threshold")
    if least is None:
        raise Left("it has no pass_threshold, so nobody can tell which of its scores are right")
    if not _is_number(least):
        raise Left("its pass_threshold is to be a number")
    return (
        f"Think of a score from {bounds[0]:g} to {bounds[1]:g}; give the highest mark where it is at least {least:g}, "
        "else 0."
    )


def _criteria(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    rows = content if isinstance(content, list) else [content]
    texts = [each.get("text") if isinstance(each, dict) else each for each in rows]
    if not all(isinstance(each, str) for each in texts):
        raise Left("a message of its input is no text")
    whole = "\n".join(str(each) for each in texts)
    if len(whole) > LONGEST_PROSE:
        raise Left(_TOO_LONG)
    return _VARIABLE.sub(lambda match: f"({_named_to_judge(_variable(match))})", whole)


def _named_to_judge(variable: Variable) -> str:
    if variable.space == "sample" and variable.path in ("output_text", "output_json"):
        return _ANSWER
    if variable.space == "item":
        return _ITEM.format(variable.path) if variable.path else "the reference"
    raise Left(f"it reads {variable.text[:60]}, and a judge here sees the request, the answer and the item")


def _listed(labels: list[Any]) -> str:
    return " or ".join(str(each) for each in labels) or "any other"


def _python(row: Mapping[str, Any]) -> tuple[list[Part], str, bool]:
    source = row.get("source")
    if not isinstance(source, str):
        raise Left("it needs its source")
    if len(source.encode("utf-8", "replace")) > LONGEST_SOURCE:
        raise Left(f"its source is longer than {LONGEST_SOURCE // 1024} kB")
    source = textwrap.dedent(source)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Left(f"its source cannot be read: {str(error) or 'it is nested too deeply'}") from None
    functions = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    if "grade" not in functions:
        raise Left("its source has no function grade(sample, item)")
    if "verify" in functions:
        raise Left("its source has a function verify, which is what the sandbox calls here; rename it")
    if foreign := sorted(_imported(tree) - sys.stdlib_module_names):
        raise Left(f"it imports {foreign[0][:60]}, which the sandbox has not")
    least = _threshold(row)
    settings = {"type": "python", "source": WRAPPED.format(source=source, least=1.0 if least is None else least)}
    words = "runs in the sandbox as grade(sample, item); what raises is unscored, and was 0 there"
    words += "" if least is None else f", passes from {least:g}"
    words += "; the image is the sandbox's" if row.get("image_tag") else ""
    return [Part(_name(row), settings)], words, False


def _imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def _multi(row: Mapping[str, Any]) -> tuple[list[Part], str, bool]:
    """A weighted sum of graders: each a part with its weight."""
    graders, formula = row.get("graders"), row.get("calculate_output")
    if not isinstance(graders, dict) or not isinstance(formula, str):
        raise Left("it needs its graders by name and its calculate_output")
    if len(graders) > MOST_PARTS or len(formula) > LONGEST_TEXT:
        raise Left(
            f"up to {MOST_PARTS} graders, and a calculate_output of up to {LONGEST_TEXT} characters, are weighed"
        )
    try:
        weights = _weights(ast.parse(formula.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        weights = {}
    if not weights or set(weights) != set(graders) or not all(0 < each < math.inf for each in weights.values()):
        raise Left(f"its formula {formula[:80]!r} is no sum of its graders, each with a weight above 0")
    parts, told, is_same = [], [], abs(sum(weights.values()) - 1) < 1e-9
    for name, inner in graders.items():
        read = GRADERS.get(str(inner.get("type"))) if isinstance(inner, dict) else None
        if read is None or read is _multi:
            raise Left(f"its grader {name[:60]} is none that can be weighed")
        found, words, same = read(inner)
        parts += [replace(part, name=name, weight=weights[name]) for part in found]
        told.append(f"{weights[name]:g} × {words}")
        is_same = is_same and same
    return parts, "; ".join(told), is_same


def _weights(node: ast.expr) -> dict[str, float]:
    """The weights of a sum. Raises ValueError for what is none."""
    match node:
        case ast.Name(name):
            return {name: 1.0}
        case ast.BinOp(left, ast.Add(), right):
            one, other = _weights(left), _weights(right)
            return {name: one.get(name, 0) + other.get(name, 0) for name in [*one, *other]}
        case ast.BinOp(ast.Constant(int() | float() as factor), ast.Mult(), inner):
            return {name: weight * factor for name, weight in _weights(inner).items()}
        case ast.BinOp(inner, ast.Mult(), ast.Constant(int() | float() as factor)):
            return {name: weight * factor for name, weight in _weights(inner).items()}
        case ast.BinOp(inner, ast.Div(), ast.Constant(int() | float() as divisor)):
            return {name: weight / divisor for name, weight in _weights(inner).items()}
    raise ValueError("no weighted sum")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


def _name(row: Mapping[str, Any]) -> str:
    return str(row.get("name") or row["type"])


GRADERS: dict[str, Callable[[Mapping[str, Any]], tuple[list[Part], str, bool]]] = {
    "string_check": _string_check,
    "text_similarity": _text_similarity,
    "label_model": _model_grader,
    "score_model": _model_grader,
    "python": _python,
    "multi": _multi,
}
