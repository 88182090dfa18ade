"""A verifier that people compose: weighted parts, each with its score, some of them required.

    {"kind": "rubric", "parts": [{"name", "type", "weight", "required", …the type's settings}, …]}

The score is the weighted mean of the parts. A required part that does not pass makes it 0, and so does whatever the
environment's own verifier calls unsafe; what could still be asked is then not asked. A part that counts and has no
score leaves the attempt unscored, with its cause, and so does an own verifier that cannot tell harm. Parts of the
environment's own verdict are reported too, so that metrics such as valid output go on; a part of the rubric with the
same name takes its place.

A reward recipe, `{"kind": "reward", "parts": […]}`, is a rubric from which a run learns. The task's own verifier,
rubric or not, is its part `environment`. Beside parts that judge it may have some with `"shapes": true`: these make no
part of the score, and are added to the reward times their weight, which may be below 0 (`shaping`).

A part of a recipe with weight 0 that is not required is *watched*: it is measured, nothing is learnt from it, and an
attempt is scored without it. A watched judge is asked about a `sample` of the attempts: by what an attempt says, so
that the same one is in it or not whenever it is judged again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flywheel.core.digests import canonical, digest
from flywheel.core.verifiers import PASS, Verdict, VerifierError, checked, unscored
from flywheel.core.verifiers.judge_prompts import part_digest
from flywheel.core.verifiers.reward_model_rules import PARTS
from flywheel.core.verifiers.rubric_parts import Case, PartType, Setting, judge

KIND = "rubric"
REWARD = "reward"
"""The kind of a reward recipe."""
MOST_PARTS = 30
LONGEST_TEXT = 2000
LONGEST_SOURCE = 64 * 1024
LONGEST_PROSE = 20_000
LARGEST_NUMBER = 1e300
PARTS_OF_RECIPES: dict[str, PartType] = PARTS | {
    "environment": replace(
        PARTS["environment"],
        label="The task's own verifier",
        description="What the environment's verifier says, whether it is its kind's own, a rubric or a judge.",
    )
}
"""The types of parts for recipes, in which a verifier is a part as a whole."""
COMMON = ("name", "type", "weight", "required", "shapes", "sample")
SAMPLE = 0.1
"""The share of attempts that a watched judge is asked about where a recipe sets none."""

_WANTED = {"number": "a number", "json": "JSON", "flag": "true or false", "reward_model": "a name@number"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PATH = re.compile(r"[^.]+(\.[^.]+)*|\.")


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    type: str
    weight: float
    is_required: bool
    settings: Mapping[str, Any]
    shapes: bool = False
    """Whether it is added to a reward, and says nothing of whether the attempt is right."""
    sample: float = 1.0
    """The share of attempts that it judges."""

    @property
    def is_watched(self) -> bool:
        """Whether it is measured and has no say, neither in the score nor in a reward."""
        return not self.weight and not self.is_required


@dataclass(frozen=True, slots=True)
class Rubric:
    parts: tuple[Part, ...]

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the parts that make up the score."""
        return {part.name: part.weight for part in self.parts if part.weight and not part.shapes}

    @property
    def shaping(self) -> dict[str, float]:
        """Weights of what is added to a reward, beside the score."""
        return {part.name: part.weight for part in self.parts if part.shapes}

    @property
    def watched(self) -> list[str]:
        """Names of the parts that say whether an attempt is right, and have no say."""
        return [part.name for part in self.parts if part.is_watched and not part.shapes]

    @property
    def learnt(self) -> "Rubric":
        """Without what is only watched."""
        return Rubric(tuple(part for part in self.parts if not part.is_watched))

    @property
    def judging(self) -> "Rubric":
        """Without what only shapes a reward."""
        return Rubric(tuple(part for part in self.parts if not part.shapes))

    @property
    def is_own_verdict(self) -> bool:
        """Whether it passes exactly what the environment's own verifier passes."""
        return [(part.type, dict(part.settings)) for part in self.learnt.judging.parts] == [("environment", {})]

    @property
    def needs(self) -> frozenset[str]:
        """The runners that its parts need."""
        return frozenset(PARTS[part.type].runner for part in self.parts) - {""}

    def verdict(self, case: Case) -> Verdict:
        scores: dict[str, float | None] = dict(case.own.parts)
        scores |= {part.name: None for part in self.parts}
        is_settled = bool(case.own.parts.get("unsafe")) or case.own.parts.get("form") == 0
        if case.own.score is None and not is_settled:
            return Verdict(None, case.own.reason, scores, case.own.cause)  # whether it did harm cannot be told
        found: dict[str, Verdict] = {}
        # What shapes comes first, for a wrong attempt may be too long as well. What runs elsewhere is asked last, and
        # not at all once the score is settled.
        ordered = sorted(self.parts, key=lambda part: (bool(PARTS[part.type].runner), not part.shapes))
        for part in ordered:
            if (is_settled and (PARTS[part.type].runner or not part.shapes)) or not _is_sampled(part, case):
                continue
            verdict = found[part.name] = _judged(part, case)
            scores[part.name] = verdict.score
            for name, score in verdict.parts.items():
                if part.type != "environment":
                    scores[f"{part.name}.{name}"] = score
            if part.is_required and verdict.success is False:
                return Verdict(0.0, f"{part.name}: {verdict.reason}", scores)
        if is_settled:
            return Verdict(0.0, case.own.reason, scores)
        for part in self.parts:
            if part.is_watched:
                continue
            verdict = found[part.name]
            if verdict.score is None:
                return Verdict(None, f"{part.name}: {verdict.reason}", scores, verdict.cause)
        total = sum(self.weights.values())
        score = sum(weight * (found[name].score or 0.0) for name, weight in self.weights.items()) / total
        return Verdict(min(score, PASS), self._reason(found), scores)

    def _reason(self, found: Mapping[str, Verdict]) -> str:
        short = [name for name in self.weights if not found[name].success]
        said = [f"{name}: {found[name].reason}" for name in short or self.weights]
        return "; ".join(said)[:2000]


def _is_sampled(part: Part, case: Case) -> bool:
    """Whether the part judges this attempt: by a number from 0 to 1 that is the digest of both."""
    if part.sample >= 1:
        return True
    said = [message.to_json() for message in case.written or case.trace.conversation()]
    return int(digest([part.name, said])[:12], 16) / 16**12 < part.sample


def _judged(part: Part, case: Case) -> Verdict:
    try:
        return checked(judge(part.type, part.settings, case))
    except Exception as error:
        return unscored(f"it raised {type(error).__name__}: {str(error)[:300]}")


def is_rubric(spec: Mapping[str, Any]) -> bool:
    return spec.get("kind") == KIND


def has_parts(spec: Mapping[str, Any]) -> bool:
    """Whether it is a verifier that people composed, or a recipe."""
    return spec.get("kind") in (KIND, REWARD)


def needs(spec: Mapping[str, Any]) -> frozenset[str]:
    """The runners that the parts of a verifier or a recipe need, whatever its environment does. Raises
    VerifierError."""
    return read(spec).needs if has_parts(spec) else frozenset()


def judges(spec: Mapping[str, Any]) -> dict[str, Part]:
    """The parts of a verifier or a recipe that are judges, by the digest of their settings. Raises VerifierError."""
    parts = read(spec).parts if has_parts(spec) else ()
    return {part_digest(part.settings): part for part in parts if part.type == "judge"}


def read(spec: Mapping[str, Any]) -> Rubric:
    """The rubric of its data. Raises VerifierError, which names the field and what would be right."""
    for name in spec:
        if name not in ("kind", "parts"):
            raise VerifierError(f"{name}: a rubric has no such field, only kind and parts")
    may_shape = spec.get("kind") == REWARD
    rows = spec.get("parts")
    if not isinstance(rows, list) or not rows:
        raise VerifierError("parts: expected a list of at least one part")
    if len(rows) > MOST_PARTS:
        raise VerifierError(f"parts: {len(rows)} are too many; {MOST_PARTS} are the most")
    parts = tuple(_part(f"parts.{number}", row, may_shape) for number, row in enumerate(rows))
    for number, part in enumerate(parts):
        if part.name in [before.name for before in parts[:number]]:
            raise VerifierError(f"parts.{number}.name: {part.name!r} is the name of an earlier part")
        if part.type == "judge" and part.settings in [before.settings for before in parts[:number]]:
            raise VerifierError(f"parts.{number}.criteria: an earlier part asks the very same; give that more votes")
    if not any(part.weight for part in parts if not part.shapes):
        wanted = "at least one weight of a part that judges" if may_shape else "at least one weight"
        raise VerifierError(f"parts: {wanted} must be above 0, or every attempt would score the same")
    return Rubric(parts)


def _part(where: str, row: Any, may_shape: bool) -> Part:
    if not isinstance(row, Mapping):
        raise VerifierError(f"{where}: expected an object")
    kind = row.get("type")
    known = [name for name, type_ in PARTS.items() if may_shape or not type_.only_shapes]
    if not isinstance(kind, str) or kind not in known:
        raise VerifierError(f"{where}.type: {kind!r} is unknown; use one of {', '.join(known)}")
    name = row.get("name", kind)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in ("unsafe", "form"):
        raise VerifierError(
            f"{where}.name: {str(name)[:60]!r} is not of the form right_tool (small letters, digits and _, not unsafe, "
            "not form)"
        )
    shapes, required = (_flag(where, row, field) for field in ("shapes", "required"))
    if "sample" in row and not may_shape:
        raise VerifierError(f"{where}.sample: a verifier judges every attempt; only a reward recipe watches a sample")
    if shapes and not may_shape:
        raise VerifierError(f"{where}.shapes: a verifier judges; what shapes a reward stands in a reward recipe")
    shapes |= PARTS[kind].only_shapes
    if shapes and required:
        raise VerifierError(f"{where}.required: what only shapes a reward cannot be required")
    weight, least = row.get("weight", 1), -1000 if shapes else 0
    _number(f"{where}.weight", weight)
    if not least <= weight <= 1000:
        raise VerifierError(f"{where}.weight: {weight!r} is not from {least} to 1000")
    own = PARTS[kind].settings
    settings: dict[str, Any] = {}
    for key, value in row.items():
        if key in COMMON:
            continue
        if key not in own:
            raise VerifierError(f"{where}.{key}: a part of type {kind} has no such setting, only {', '.join(own)}")
        settings[key] = _setting(f"{where}.{key}", own[key], value)
    for key, setting in own.items():
        if setting.kind == "choice":
            settings.setdefault(key, next(iter(setting.choices)))
        elif setting.is_required and key not in settings:
            raise VerifierError(f"{where}.{key}: expected {_WANTED.get(setting.kind, 'a text')}")
    PARTS[kind].check(where, settings)
    part = Part(name, kind, float(weight), required, settings, shapes)
    return replace(part, sample=_sample(where, row, part)) if may_shape else part


def _sample(where: str, row: Mapping[str, Any], part: Part) -> float:
    """The share of attempts that a part of a recipe judges."""
    is_asked = part.is_watched and PARTS[part.type].runner == "judge"
    if "sample" not in row:
        return SAMPLE if is_asked else 1.0
    if not is_asked:
        raise VerifierError(f"{where}.sample: only a judge with weight 0 that is not required is asked about a sample")
    sample = row["sample"]
    _number(f"{where}.sample", sample)
    if not 0 < sample <= 1:
        raise VerifierError(f"{where}.sample: {sample!r} is not a share above 0, up to 1")
    return float(sample)


def _flag(where: str, row: Mapping[str, Any], field: str) -> bool:
    value = row.get(field, False)
    if not isinstance(value, bool):
        raise VerifierError(f"{where}.{field}: {value!r} is neither true nor false")
    return value


def _setting(where: str, setting: Setting, value: Any) -> Any:
    match setting.kind:
        case "choice":
            if not isinstance(value, str) or value not in setting.choices:
                raise VerifierError(f"{where}: {value!r} is unknown; use one of {', '.join(setting.choices)}")
        case "number":
            _number(where, value)
            return float(value)
        case "flag":
            if not isinstance(value, bool):
                raise VerifierError(f"{where}: {value!r} is neither true nor false")
        case "text" | "prose" | "code" | "reward_model":
            if where.endswith(".tables") and isinstance(value, list) and all(isinstance(each, str) for each in value):
                return value
            most = {"code": LONGEST_SOURCE, "prose": LONGEST_PROSE}.get(setting.kind, LONGEST_TEXT)
            if not isinstance(value, str) or not value or len(value.encode("utf-8", "replace")) > most:
                raise VerifierError(f"{where}: expected a text of 1 to {most} bytes")
            if "\0" in value:
                raise VerifierError(f"{where}: there is a NUL character in it")
            if where.endswith((".path", ".target")) and not _PATH.fullmatch(value):
                raise VerifierError(f"{where}: {value!r} is not of the form arguments.to")
        case "json":
            try:
                if len(canonical(value)) > LONGEST_SOURCE:
                    raise VerifierError(f"{where}: it is longer than {LONGEST_SOURCE // 1024} kB")
            except (TypeError, ValueError, RecursionError):
                raise VerifierError(f"{where}: it cannot be written as JSON") from None
            if b"\\u0000" in canonical(value):
                raise VerifierError(f"{where}: there is a NUL character in it")
    return value


def _number(where: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST_NUMBER:
        raise VerifierError(f"{where}: {repr(value)[:60]} is not a number below {LARGEST_NUMBER:g}")
