"""A ramp in words: where it is, and what happens next."""

import math
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone

from flywheel.core.evidence.ramp.ramp_plan import WHOLE, Stage, share_words
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps.ramp_evidence import PROVED, Evidence, margins_of, shown_wealth

State = Ramp.State
UNITS: Final = {"slow": "seconds per model call", "dear": "dollars per trajectory"}
"""Of the limits of signals."""


def standing_words(ramp: Ramp) -> str:
    """Return the ramp's state in a few words: `ramp at 25%`."""
    if ramp.state == State.WAITING:
        return "ramp about to begin"
    if ramp.is_open:
        held = ", on hold" if ramp.state == State.HOLDING else ""
        if ramp.stage == Ramp.SHADOWED:
            return f"ramp in the shadow{held}"
        if ramp.is_held_back:
            return f"live, {share_words(WHOLE - ramp.split.share)} held back{held}"
        return f"ramp at {share_words(ramp.split.share)}{held}"
    return f"ramp {State(ramp.state).label}"


def next_words(ramp: Ramp, numbers: Evidence, now: datetime | None = None) -> str:
    """Return what happens next, and what that waits for."""
    live, version = ramp.candidate.baseline, ramp.candidate.version
    if ramp.state == State.WAITING:
        first = "shadow" if ramp.rules.shadow else "first stage"
        when = "once its self-test has passed" if ramp.test_wanted_at is not None else "when the judge sees it"
        return f"The {first} begins {when}. Until then all sessions go to {live}."
    if ramp.state == State.HOLDING and ramp.stage == Ramp.SHADOWED:
        return "No copies are made until somebody presses Go on. The candidate answers nobody."
    if ramp.state == State.HOLDING:
        return f"Nothing moves until somebody presses Go on. The candidate keeps {share_words(ramp.split.share)}."
    if ramp.state == State.FINISHED:
        return f"{version} went live for all sessions."
    if ramp.state == State.SHADOW:
        return _after_shadow(ramp, now or timezone.now())
    if ramp.state != State.RUNNING:
        return f"All sessions go to {live}."
    if ramp.test_wanted_at is not None:
        return "It goes on once its self-test has passed, in a moment."
    plan = ramp.rules
    waits = _waits(plan.steps[ramp.stage], ramp.stage_since, numbers.in_stage, now or timezone.now())
    if ramp.is_held_back:
        after = f"in at least {waits}, if nothing is found" if waits else "in a moment"
        return f"{version} is live. The sessions that {live} keeps go to it {after}."
    if ramp.stage + 1 < len(plan.stages):
        following = f"Next stage ({share_words(plan.stages[ramp.stage + 1].share)})"
        return f"{following} in at least {waits}, if nothing is found." if waits else f"{following} in a moment."
    return _at_the_end(ramp, numbers, waits)


def _at_the_end(ramp: Ramp, numbers: Evidence, waits: str) -> str:
    plan = ramp.rules
    everybody = f"all but {share_words(plan.holdback.share)} of the" if plan.holdback else "all"
    if plan.finish == "person":
        return f"Ready to finish in {waits}." if waits else "All stages are done. Finish it when you are ready."
    if plan.finish == "nothing_found":
        if not waits:
            return "Finishes in a moment."
        return f"Live for {everybody} sessions in at least {waits}, if nothing is found."
    (label, margin), *others = margins_of(ramp)
    more = "".join(f", {other} by less than {100 * its:g} points" for other, its in others)
    after = f"in at least {waits}, and " if waits else ""
    return (
        f"Live for {everybody} sessions {after}once {label} are shown to be higher by less than "
        f"{100 * margin:g} points{more}: the proof has {shown_wealth(numbers.proof)} of {PROVED:g}."
    )


def _after_shadow(ramp: Ramp, now: datetime) -> str:
    shadow = ramp.rules.shadow
    assert shadow is not None
    until = ramp.stage_since + timedelta(minutes=shadow.minutes)
    minutes = max(0, math.ceil((until - now).total_seconds() / 60))
    following = "the first stage begins" if shadow.then == "stages" else "a person decides about the first stage"
    return (
        f"The candidate answers copies of calls, and nobody gets its answers. After {shadow.sessions:,} sessions, "
        f"{minutes:,} minutes, or the budget, {following}."
    )


def _waits(stage: Stage, since: datetime, final: int, now: datetime) -> str:
    """Name what the stage still lacks: `12 minutes and 30 sessions`; empty where it lacks nothing."""
    left = since + timedelta(minutes=stage.minutes) - now
    minutes, sessions = math.ceil(max(0.0, left.total_seconds()) / 60), max(0, stage.sessions - final)
    counts = [(minutes, "minute"), (sessions, "session")]
    return " and ".join(f"{count:,} {word}{'' if count == 1 else 's'}" for count, word in counts if count)
