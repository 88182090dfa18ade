"""Does a server keep its adapters apart? Asked before every comparison, because a wrong answer looks like any other.

A few requests are put to every adapter greedily: each alone, one at a time; then interleaved and at once, so that they
share batches: the first beside each of the others. A batch may round another way; it may not answer as somebody else.
So each answer must have the same tokens with the same probabilities as when it was alone. Among them are probes, which
answer quite differently from all others, as many as it takes to fill every place that the server has for adapters:
whoever gets another's place shows it. If a probe does *not* answer differently when alone, the server applies no
adapters, and that fails too.

Why: docs/design/serving.md.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from flywheel.core.envs.policy_rollouts import ChatRequest
from workers.engines.vllm_engine import Trail

ROUNDS = 2
"""How often each group is asked together."""
TOLERANCE = 0.1
"""In nats, for a token's probability, and for how near the second best token may be that was chosen instead. Half
precision rounds by some hundredths; a foreign adapter, and the probe above all, moves it by whole ones."""
SHOWN = 6
EXCERPT = 300
AT_ONCE = 32


class Server(Protocol):
    def trails(self, questions: Sequence[tuple[str, ChatRequest]], at_once: int = 1) -> list[Trail]: ...


@dataclass(frozen=True)
class Difference:
    """An answer that was another one among others than alone."""

    arm: str
    asked: str
    token: int
    alone: str
    among_others: str
    nats: float | None
    """By how much the token's probability differs; None where it is another token."""


def check_isolation(
    server: Server, arms: Sequence[str], probes: Sequence[str], requests: Sequence[ChatRequest], slots: int
) -> dict[str, Any]:
    """Ask; what was found, as JSON, with `passed`. The probes are one adapter under several names.

    The first arm shares a batch with every other, never with more than fill the server's `slots`: it would answer them
    one after the other, and not side by side. Raises EngineError.
    """
    singly = [(arm, request) for request in requests for arm in (*arms, probes[0])]
    alone = dict(zip([(arm, request.seed) for arm, request in singly], server.trails(singly), strict=True))
    alone |= {(probe, request.seed): alone[probes[0], request.seed] for probe in probes for request in requests}
    batches = [[*group, *probes] for group in _groups(arms, slots - 1)] * ROUNDS
    found: list[Difference] = []
    answers, worst = 0, 0.0
    for names in batches:
        questions = [(name, request) for request in requests for name in names]
        together = server.trails(questions, at_once=min(AT_ONCE, len(questions)))
        answers += len(together)
        for (name, request), among in zip(questions, together, strict=True):
            difference, nats = _compare(name, request, alone[name, request.seed], among)
            found += [difference] if difference else []
            worst = max(worst, nats)
    untouched = [arm for arm in arms if all(_is_same(alone, arm, probes[0], request) for request in requests)]
    return {
        "passed": not found and not untouched,
        "arms": list(arms),
        "probes": len(probes),
        "requests": len(requests),
        "answers": answers,
        "different": len(found),
        "worst_nats": worst,
        "untouched": untouched,
        "evidence": [asdict(difference) for difference in found[:SHOWN]],
    }


def _groups(arms: Sequence[str], size: int) -> list[list[str]]:
    """The first with all others, so many at a time; the last group is filled up with those before it."""
    first, others, width = arms[0], arms[1:], size - 1
    last = max(0, len(others) - width)
    return [[first, *others[start : start + width]] for start in (*range(0, last, width), last)]


def _compare(arm: str, request: ChatRequest, alone: Trail, among: Trail) -> tuple[Difference | None, float]:
    """Return the difference that rounding cannot explain, if any, and the greatest difference of a probability."""
    worst = 0.0
    for place, (one, other) in enumerate(zip(alone.tokens, among.tokens, strict=False)):
        if one != other:
            if alone.leads[place] <= TOLERANCE:
                return None, worst  # two tokens were as good as equal, and all that follows hangs on which it was
            return _difference(arm, request, place, alone, among, None), worst
        nats = abs(alone.logprobs[place] - among.logprobs[place])
        worst = max(worst, nats)
        if nats > TOLERANCE:
            return _difference(arm, request, place, alone, among, nats), worst
    if len(alone.tokens) != len(among.tokens):
        return _difference(arm, request, min(len(alone.tokens), len(among.tokens)), alone, among, None), worst
    return None, worst


def _difference(
    arm: str, request: ChatRequest, place: int, alone: Trail, among: Trail, nats: float | None
) -> Difference:
    asked, one, other = (
        text[:EXCERPT].replace("\0", "\ufffd") for text in (request.messages[-1].content, alone.text, among.text)
    )  # random tokens may spell a NUL, which the database refuses
    return Difference(arm, asked, place, one, other, nats)


def _is_same(alone: dict[tuple[str, int], Trail], arm: str, probe: str, request: ChatRequest) -> bool:
    return _compare(arm, request, alone[arm, request.seed], alone[probe, request.seed])[0] is None
