"""The plan of a ramp: its stages, by which signals it is judged, and how it ends. It is part of what is approved."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from flywheel.core.errors import FieldError

Finish = Literal["proof", "person", "nothing_found"]
Then = Literal["stages", "person"]
THENS: Final[dict[str, str]] = {
    "stages": "the first stage begins",
    "person": "a person decides",
}
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
        Signal("failed", "failures", 0.017),
        Signal("unsafe", "unsafe actions", 0.01),
        Signal("errors", "server errors and timeouts", 0.005),
        Signal("invalid", "invalid calls", 0.005),
        Signal("slow", "slow answers", 0.004, needs_limit=True),
        Signal("dear", "costly sessions", 0.004, needs_limit=True),
    )
}
BUCKETS_ALPHA: Final = 0.005
"""That of all buckets which the candidate is to have fixed, in equal parts."""
MOST_STAGES, MOST_BUCKETS = 10, 20
MOST_COPIES: Final = 100_000
MOST_HELD_BACK: Final = 1_000
"""Of `WHOLE` sessions."""


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
class Shadow:
    """A part before the first stage: copies of the live version's calls go to the candidate, and nobody gets its
    answers. Over after so many sessions or minutes, or when the budget is used up."""

    sessions: int = 100
    """That are compared."""
    minutes: float = 1440.0
    calls: int = 1000
    """The budget: the most copies, and where they are given the most tokens and dollars for all of them."""
    tokens: int | None = None
    dollars: float | None = None
    then: Then = "stages"

    def __post_init__(self) -> None:
        _whole("shadow.sessions", self.sessions, 1, MOST_COPIES)
        _between("shadow.minutes", self.minutes, 1, 60 * 24 * 30)
        _whole("shadow.calls", self.calls, 1, MOST_COPIES)
        if self.tokens is not None:
            _whole("shadow.tokens", self.tokens, 1, 10**12)
        if self.dollars is not None:
            _between("shadow.dollars", self.dollars, 0.01, 1e6)
        if self.then not in THENS:
            raise FieldError(f"is one of {', '.join(THENS)}, not {self.then!r}", field="shadow.then")


@dataclass(frozen=True, slots=True)
class Holdback:
    """A part after the candidate has gone live: a share of the sessions stays with the version before, so that the
    ramp's test goes on. Over after so many sessions of both arms and days, whichever comes later."""

    share: int = 500
    """Of `WHOLE` sessions, those that stay: from 1 to `MOST_HELD_BACK`."""
    sessions: int = 1000
    days: float = 7.0

    def __post_init__(self) -> None:
        _whole("holdback.share", self.share, 1, MOST_HELD_BACK)
        _whole("holdback.sessions", self.sessions, 1, 1_000_000)
        _between("holdback.days", self.days, 0, 90)


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
    margins: dict[str, float] = field(default_factory=dict)
    """The same of other signals that are judged, where the proof is to cover them too. They take back as without."""
    alphas: dict[str, float] = field(default_factory=lambda: {key: signal.alpha for key, signal in SIGNALS.items()})
    """By signal, together at most `ALPHA`. A signal that is left out is not judged."""
    limits: dict[str, float] = field(default_factory=dict)
    """Of signals that need one: seconds of a model call, dollars of a trajectory."""
    quiet_s: float = 120.0
    wait_s: float = 86_400.0
    shadow: Shadow | None = None
    holdback: Holdback | None = None

    def __post_init__(self) -> None:
        _check_stages(self.stages)
        if self.holdback and self.stages[-1].share >= WHOLE - self.holdback.share:
            raise FieldError(
                f"the last stage has {share_words(self.stages[-1].share)} of the sessions, and with a holdback of "
                f"{share_words(self.holdback.share)} the candidate has {share_words(WHOLE - self.holdback.share)}",
                field="holdback.share",
            )
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
        for key, margin in self.margins.items():
            if key == "failed" or key not in self.signals:
                others = ", ".join(each for each in self.signals if each != "failed") or "none"
                raise FieldError(
                    f"{key!r} has no margin here: signals that are judged have one ({others}), and that of failed is "
                    "`margin`",
                    field=f"margins.{key}",
                )
            _between(f"margins.{key}", margin, 0.001, 0.5)

    @property
    def signals(self) -> list[str]:
        """Those that are judged: one that needs a limit only with it."""
        return [key for key in self.alphas if key not in SIGNALS or not SIGNALS[key].needs_limit or key in self.limits]

    @property
    def proved(self) -> dict[str, float]:
        """By signal that the proof is to cover, its margin."""
        return {"failed": self.margin, **self.margins}

    @property
    def steps(self) -> tuple[Stage, ...]:
        """The stages, and after them the holdback as one."""
        held = self.holdback
        return self.stages + ((Stage(WHOLE - held.share, held.sessions, held.days * 1440),) if held else ())

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
        for name, kind in (("shadow", Shadow), ("holdback", Holdback)):
            if given.get(name) is not None:
                given = {**given, name: _part(name, kind, given[name])}
        for name in ("alphas", "limits", "margins"):
            if not isinstance(given.get(name, {}), dict):
                raise FieldError("is an object of numbers by signal", field=name)
        return cls(**given)


def with_buckets(plan: Plan, buckets: Sequence[str]) -> Plan:
    """The plan with a signal for each of the buckets that the candidate is to have fixed."""
    keys = buckets[:MOST_BUCKETS]
    alphas = {key: alpha for key, alpha in plan.alphas.items() if not key.startswith(BUCKET)}
    alphas |= {f"{BUCKET}{key}": BUCKETS_ALPHA / len(keys) for key in keys}
    return replace(plan, alphas=alphas)


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


def _part(name: str, kind: type[Shadow | Holdback], given: Any) -> Shadow | Holdback:
    known = list(kind.__dataclass_fields__)
    if not isinstance(given, dict) or not given.keys() <= set(known):
        raise FieldError(f"is an object of {', '.join(known)}, and nothing else", field=name)
    return kind(**given)


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


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise FieldError(f"is a whole number from {least:,} to {most:,}, not {value!r}", field=name)


def _between(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise FieldError(f"is a number from {least:g} to {most:g}, not {value!r}", field=name)
