"""The plan of a ramp: its stages, by which signals it is judged, and how it ends. It is part of what is approved."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from flywheel.core.errors import FieldError

Finish = Literal["proof", "person", "nothing_found"]
FINISHES: Final[dict[str, str]] = {
    "proof": "when it is shown not to be worse by the margin",
    "person": "when a person says so",
    "nothing_found": "after the last stage, if nothing was found",
}
WHOLE: Final = 10_000
"""Shares are counted in parts of so many sessions."""
ALPHA: Final = 0.05
"""The chance that a ramp whose candidate does as the live version does is ever taken back, all signals together."""
BUCKET: Final = "bucket:"
"""Begins the name of the signal of a bucket that the candidate is to have fixed."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Something by which a session can go wrong, told apart in both arms."""

    key: str
    label: str
    """In running text, after "more sessions with": `failures`."""
    alpha: float
    """Its part of the ramp's chance of error by default."""
    needs_limit: bool = False
    """Whether a session counts as such beyond a number that is measured on the live version when the ramp begins."""


SIGNALS: Final = {
    signal.key: signal
    for signal in (
        Signal("failed", "failures", 0.02),
        Signal("unsafe", "unsafe actions", 0.01),
        Signal("errors", "server errors and timeouts", 0.005),
        Signal("invalid", "invalid calls", 0.005),
        Signal("slow", "slow answers", 0.0025, needs_limit=True),
        Signal("dear", "costly sessions", 0.0025, needs_limit=True),
    )
}
BUCKETS_ALPHA: Final = 0.005
"""That of all buckets which the candidate is to have fixed, in equal parts."""
MOST_STAGES, MOST_BUCKETS = 10, 20


@dataclass(frozen=True, slots=True)
class Stage:
    """A share of the sessions for some time."""

    share: int
    """Of `WHOLE` sessions, those that the candidate answers: from 1 to `WHOLE` - 1."""
    sessions: int = 100
    """The least that are judged before the next stage."""
    minutes: float = 60.0
    """The least that it lasts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Chances and margins are fractions: 0.05 is five points.

    `quiet_s` is how long a session must be silent to count as over; one whose result is not known by then is waited
    for up to `wait_s`, and then counted as missing.
    """

    stages: tuple[Stage, ...] = (Stage(500), Stage(2500), Stage(5000))
    finish: Finish = "proof"
    margin: float = 0.05
    """By how much more often sessions may fail, for the proof that the candidate is not worse."""
    alphas: dict[str, float] = field(default_factory=lambda: {key: signal.alpha for key, signal in SIGNALS.items()})
    """By signal, together at most `ALPHA`. A signal that is left out is not judged."""
    limits: dict[str, float] = field(default_factory=dict)
    """Of signals that need one: seconds of a model call, dollars of a trajectory."""
    quiet_s: float = 120.0
    wait_s: float = 86_400.0

    def __post_init__(self) -> None:
        _check_stages(self.stages)
        if self.finish not in FINISHES:
            raise FieldError(f"is one of {', '.join(FINISHES)}, not {self.finish!r}", field="finish")
        _between("margin", self.margin, 0.001, 0.5)
        _between("quiet_s", self.quiet_s, 1, 86_400)
        _between("wait_s", self.wait_s, self.quiet_s, 30 * 86_400)
        buckets = [key for key in self.alphas if key.startswith(BUCKET)]
        if len(buckets) > MOST_BUCKETS:
            raise FieldError(f"at most {MOST_BUCKETS} categories are judged, not {len(buckets)}", field="alphas")
        for key, alpha in self.alphas.items():
            if key not in SIGNALS and not (key.startswith(BUCKET) and key != BUCKET):
                raise FieldError(f"{key!r} is no signal; there are {', '.join(SIGNALS)} and bucket:…", field="alphas")
            _between(f"alphas.{key}", alpha, 1e-6, ALPHA)
        if "failed" not in self.alphas:
            raise FieldError("failed must be judged; give it a part of the chance of error", field="alphas")
        if math.fsum(self.alphas.values()) > ALPHA * (1 + 1e-9):
            total = math.fsum(self.alphas.values())
            raise FieldError(f"they are {total:.4f} together, and a ramp has {ALPHA} in all", field="alphas")
        for key, limit in self.limits.items():
            if key not in SIGNALS or not SIGNALS[key].needs_limit:
                raise FieldError(f"{key!r} takes no limit", field="limits")
            _between(f"limits.{key}", limit, 1e-9, 1e9)

    @property
    def signals(self) -> list[str]:
        """Those that are judged: one that needs a limit only with it."""
        return [key for key in self.alphas if key not in SIGNALS or not SIGNALS[key].needs_limit or key in self.limits]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Plan":
        """Raises FieldError for what is no plan."""
        known = set(cls.__dataclass_fields__)
        if unknown := set(given) - known:
            raise FieldError(f"is not part of a plan; there are {', '.join(sorted(known))}", field=sorted(unknown)[0])
        stages = given.get("stages")
        if stages is not None:
            given = {**given, "stages": _stages(stages)}
        for name in ("alphas", "limits"):
            if not isinstance(given.get(name, {}), dict):
                raise FieldError("is an object of numbers by signal", field=name)
        return cls(**given)


def with_buckets(plan: Plan, buckets: Sequence[str]) -> Plan:
    """The plan with a signal for each of the buckets that the candidate is to have fixed."""
    keys = buckets[:MOST_BUCKETS]
    alphas = {key: alpha for key, alpha in plan.alphas.items() if not key.startswith(BUCKET)}
    alphas |= {f"{BUCKET}{key}": BUCKETS_ALPHA / len(keys) for key in keys}
    return Plan(**{**{name: getattr(plan, name) for name in Plan.__dataclass_fields__}, "alphas": alphas})


def share_words(share: int) -> str:
    """Write parts of `WHOLE` in percent: `25%`."""
    return f"{share * 100 / WHOLE:g}%"


def _stages(given: Any) -> tuple[Stage, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(row, dict) for row in given):
        raise FieldError('is a list of {"share", "sessions", "minutes"}', field="stages")
    try:
        return tuple(Stage(**row) for row in given)
    except TypeError:
        raise FieldError('each has "share", "sessions" and "minutes", and nothing else', field="stages") from None


def _check_stages(stages: Sequence[Stage]) -> None:
    if not 1 <= len(stages) <= MOST_STAGES:
        raise FieldError(f"there are from 1 to {MOST_STAGES}, not {len(stages)}", field="stages")
    before = 0
    for number, stage in enumerate(stages, 1):
        if not isinstance(stage.share, int) or isinstance(stage.share, bool) or not 0 < stage.share < WHOLE:
            raise FieldError(
                f"stage {number}: a share is a whole number from 1 to {WHOLE - 1} of {WHOLE} sessions, not "
                f"{stage.share!r}; the version goes live for all of them when the ramp finishes",
                field="stages",
            )
        if stage.share <= before:
            raise FieldError(f"stage {number}: shares rise, and {stage.share} comes after {before}", field="stages")
        before = stage.share
        if not isinstance(stage.sessions, int) or not 1 <= stage.sessions <= 1_000_000:
            raise FieldError(f"stage {number}: at least 1 session is judged, not {stage.sessions!r}", field="stages")
        _between("stages", stage.minutes, 0, 60 * 24 * 30)


def _between(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise FieldError(f"is a number from {least:g} to {most:g}, not {value!r}", field=name)
