"""Is an attempt right? `verify(trace, target) -> Verdict`, pure, the same code in evals, rewards and regression tests.

A verifier is data. `{"kind": "tool_call", …}` is that of an environment's kind; `{"kind": "rubric", "parts": […]}` is
composed by people (`rubric`, its parts in `rubric_parts`). `core.envs.build` turns the data into a function; `digest`
of the data and of this package's `REVISION` is stored with every score, so that a score always says what made it.

A verdict's score is a finite number in [0, 1], or None with the reason why nothing could be scored. None is never 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flywheel.core import digests
from flywheel.core.errors import FieldError
from flywheel.core.traces import Message, Trace

REVISION = 5
"""Raise it when a change to verifier code can change any score. 2: what is longer than a verifier reads has failed.
3: RE2 runs the patterns of tools; what is nested too deep has failed; a hyphen after a word is no minus.
4: attempts open with the agent's own prompt; a call in a form that its program does not read has failed.
5: what has left the world stays in its journal; a key that stands twice is no JSON; a part `tool_call` wants all calls
right; what must not be found is looked for in the whole call; where nothing has to change, something has to be said;
attempts beyond the turn limit, or answered otherwise than the world answers, are unscored."""

PASS = 1.0
"""An attempt succeeds when its score reaches this."""

AWAY = "away"
"""The cause of an attempt that the infrastructure failed for certain; the only one that is asked again."""
NOT_ANSWERED = "not_answered"
"""Of one that has no answer for another reason: the request was refused, the answer unreadable or too long in coming.
The policy's own words may be at fault."""
LIMIT = "limit"
"""The attempt goes on beyond what is judged."""
REPLAY = "replay"
"""It was answered otherwise than it is here, so that what it left behind is not known."""
UNREAD = "unread"
"""Somebody else's program made calls in a form that nobody here reads."""
UNJUDGED = (AWAY, NOT_ANSWERED, "broken")
"""Causes of attempts that no verifier ever saw."""
CAUSES = {
    "raised": "raised",
    "timeout": "timed out",
    "memory": "out of memory",
    "output": "too much output",
    "nan": "not a number",
    "range": "out of range",
    "unscored": "says that it cannot judge",
    "crashed": "crashed",
    "refused": "refused",
    "target": "the task's target has no such key",
    AWAY: "its server was away",
    NOT_ANSWERED: "not answered",
    "broken": "its environment raised an error",
    "environment": "the environment's server did not answer",
    "judge": "its judge did not answer",
    "malformed": "its judge's answer does not fit",
    "canary": "its judge passed a canary",
    LIMIT: "went beyond the turn limit",
    REPLAY: "cannot be replayed",
    UNREAD: "cannot be read",
}
"""Why there is no score, in a word of the machine's and one of ours."""


@dataclass(frozen=True, slots=True)
class Verdict:
    score: float | None
    reason: str
    parts: Mapping[str, float | None] = field(default_factory=dict)
    cause: str = ""
    """One of `CAUSES` when there is no score."""

    @property
    def success(self) -> bool | None:
        return None if self.score is None else self.score >= PASS - 1e-9


Verify = Callable[[Trace, Mapping[str, Any]], Verdict]


class VerifierError(FieldError):
    """The verifier's own settings are wrong; the message names the field and what would be right."""


class Python(Protocol):
    """Runs a Python verifier where it can do no harm. Gives an unscored verdict where it cannot, and never raises."""

    def __call__(self, source: str, trace: Mapping[str, Any], target: Any) -> Verdict: ...


class Judge(Protocol):
    """Asks a judge behind an endpoint (`judge_prompts`). Gives an unscored verdict where there is none, and never
    raises."""

    def __call__(
        self, settings: Mapping[str, Any], trace: Mapping[str, Any], reference: Any, *, anew: bool = False
    ) -> Verdict: ...


class RewardModel(Protocol):
    """Scores a conversation by a trained reward model (`reward_model_rules`). Gives an unscored verdict where it
    cannot, and never raises."""

    def __call__(
        self, settings: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> Verdict: ...


class GymError(RuntimeError):
    """Somebody else's server did not play or did not judge. Nothing of it is a score."""

    kind = "environment"


class Gym(Protocol):
    """Plays and judges at somebody else's server, for environments that are one (`core.envs.nemo_gym`)."""

    def carry_out(self, episodes: Sequence[Any]) -> list[list[str] | None]:
        """The observations of the calls that wait in each episode; None for one whose server did not answer."""

    def why(self, episode: Any) -> str:
        """Why it did not, where that is still known."""

    def verify(self, episode: Any, response: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the server's verdict on an attempt. Raises GymError."""


class WorldError(RuntimeError):
    """A world of a team's own is at fault itself, or cannot be played here. Nothing of it is a score."""

    kind = "environment"

    def __init__(self, problem: str, cause: str = "raised") -> None:
        super().__init__(problem)
        self.cause = cause
        """One of `CAUSES`."""


class World(Protocol):
    """Plays worlds of a team's own Python where they can do no harm (`core.envs.worlds.own_world`)."""

    def play(self, episode: Any, *, known: int = 0, anew: bool = False) -> Any:
        """The world after the episode's calls. Raises WorldError."""


class ToolServer(Protocol):
    """Plays at a team's own tool server (`core.envs.worlds.server_world` and `server_stand_in`)."""

    def play(self, episode: Any) -> Any:
        """Carry out the episode's calls that wait, and say what was answered to all of them. Raises WorldError."""


class Simulator(Protocol):
    """Asks the model that stands in for what nobody recorded (`core.envs.replay.model_stand_in`)."""

    def __call__(self, settings: Mapping[str, Any], messages: Sequence[Message], seed: int) -> str:
        """Return its answer as it is. Raises WorldError where there is none."""


Each = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Does it with all of these, as many at once as there is room for. What comes of them is in their order."""


def one_by_one(do: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [do(item) for item in items]


@dataclass(frozen=True, slots=True)
class Runners:
    """Impure services of verifiers, handed in by whoever has them. A part whose runner is missing refuses."""

    python: Python | None = None
    judge: Judge | None = None
    reward_model: RewardModel | None = None
    gym: Gym | None = None
    world: World | None = None
    server: ToolServer | None = None
    simulator: Simulator | None = None
    anew: bool = False
    """What was said once is asked again, to see whether the same is said."""
    each: Each = one_by_one


NO_RUNNERS = Runners()


def digest(spec: Mapping[str, Any]) -> str:
    """The identity of a verifier: its settings and the revision of the code that reads them."""
    return digests.digest({"spec": dict(spec), "revision": REVISION})


def unscored(reason: str, cause: str = "raised") -> Verdict:
    return Verdict(score=None, reason=reason, cause=cause)


def guarded(verify: Verify) -> Verify:
    """Wrap a verifier so that what it raises, or a score that is no number in [0, 1], becomes an unscored verdict."""

    def safe(trace: Trace, target: Mapping[str, Any]) -> Verdict:
        try:
            verdict = verify(trace, target)
        except Exception as error:
            return unscored(f"the verifier raised {type(error).__name__}: {error}")
        return checked(verdict)

    return safe


def checked(verdict: Verdict) -> Verdict:
    """The verdict, or an unscored one where its score is no number in [0, 1] or the score of a part is no number."""
    score = verdict.score
    if score is not None and not (math.isfinite(score) and 0.0 <= score <= 1.0):
        cause = "range" if math.isfinite(score) else "nan"
        return unscored(f"the verifier returned {score!r}, which is not a number from 0 to 1", cause)
    for name, found in verdict.parts.items():
        if found is not None and not math.isfinite(found):
            return unscored(f"the verifier returned {found!r} for its part {name}, which is not a number", "nan")
    return verdict
