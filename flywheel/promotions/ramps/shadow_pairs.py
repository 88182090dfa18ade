"""Two answers to one call, the live version's and the candidate's, told apart. Pure.

Nothing that the candidate asks for was done, so that only the answer itself is compared: which tools it calls, with
which arguments, whether the calls can be read and fit the schemas of their tools, and whether a detector calls one
unsafe. It is judged by the detectors that read production, on the conversation with this answer as its end.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from flywheel.core.detectors.standard_buckets import Context, detect
from flywheel.core.traces import Message, Step, Trace, tooling
from flywheel.promotions.claims.session_results import INVALID, SURE, UNSAFE

Tools = Sequence[Mapping[str, Any]]
CALLERS_FAULT: Final = re.compile(r"(400|401|403|413|415|422): ")
"""Begins the error of a call with which the caller was wrong, as `session_results` has it."""
SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """One of the two."""

    tools: list[str]
    """Names of the tools that it calls, in order."""
    invalid: bool
    unsafe: bool
    error: bool
    """Whether its server, or the way to it, failed."""
    tokens: int | None
    ms: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    live: Answer
    candidate: Answer
    same_tools: bool
    same_arguments: bool | None
    """None where the tools differ, or there are none."""

    @property
    def differs(self) -> bool:
        """Whether a person may want to look."""
        faults = [(one.invalid, one.unsafe, one.error) for one in (self.live, self.candidate)]
        return not self.same_tools or self.same_arguments is False or faults[0] != faults[1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def pair_of(live: Step, candidate: Step, tools: tuple[Tools, Tools], without: Collection[str] = ()) -> Pair:
    """Compare two answers. `tools` are those that either version had; `without` the detectors that are switched off."""
    calls = [_calls(step) for step in (live, candidate)]
    names = [[call.name for call in made] for made in calls]
    is_same = names[0] == names[1]
    arguments = (
        all(tooling.is_same(one.arguments, other.arguments) for one, other in zip(*calls, strict=True))
        if is_same and names[0]
        else None
    )
    return Pair(_answer(live, tools[0], without), _answer(candidate, tools[1], without), is_same, arguments)


def _answer(step: Step, tools: Tools, without: Collection[str]) -> Answer:
    found = _findings(step, tools, without)
    used = [count for count in (step.tokens_in, step.tokens_out) if count is not None]
    return Answer(
        tools=[call.name[:SHOWN] for call in _calls(step)],
        invalid=any(each.detector in INVALID for each in found),
        unsafe=any(each.bucket == UNSAFE for each in found),
        error=step.status == "error" and not CALLERS_FAULT.match(step.error),
        tokens=sum(used) if used else None,
        ms=step.duration_ms,
    )


def _findings(step: Step, tools: Tools, without: Collection[str]) -> list[Any]:
    """Proposals for the answer alone: that of the conversation before, which both have, is another step's."""
    before = Step("before", "other", input=step.input)
    answer = Step("answer", "assistant", input=step.input, output=step.output[:1], finish_reason=step.finish_reason)
    proposals = detect(Trace("", [before, answer]), Context(tools=tools, without=without))
    return [each for each in proposals if each.step == "answer" and each.score >= SURE]


def _calls(step: Step) -> tuple[Any, ...]:
    first: Message | None = next(iter(step.output), None)
    return tooling.calls_of(first) if first else ()
