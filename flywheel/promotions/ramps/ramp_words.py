"""A ramp in words: where it is, and what happens next."""

import math
from datetime import datetime, timedelta

from django.utils import timezone

from flywheel.core.evidence.ramp.ramp_plan import Stage, share_words
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps.ramp_evidence import PROVED, Evidence, shown_wealth

State = Ramp.State


def standing_words(ramp: Ramp) -> str:
    """Return the ramp's state in a few words: `ramp at 25%`."""
    if ramp.state == State.WAITING:
        return "ramp about to begin"
    if ramp.is_open:
        held = ", on hold" if ramp.state == State.HOLDING else ""
        return f"ramp at {share_words(ramp.split.share)}{held}"
    return f"ramp {State(ramp.state).label}"


def next_words(ramp: Ramp, numbers: Evidence, now: datetime | None = None) -> str:
    """Return what happens next, and what that waits for."""
    live, version = ramp.candidate.baseline, ramp.candidate.version
    if ramp.state == State.WAITING:
        if ramp.test_wanted_at is not None:
            return f"The first stage begins once its self-test has passed. Until then all sessions go to {live}."
        return f"The first stage begins when the judge sees it. Until then all sessions go to {live}."
    if ramp.state == State.HOLDING:
        return f"Nothing moves until somebody presses Go on. The candidate keeps {share_words(ramp.split.share)}."
    if ramp.state == State.FINISHED:
        return f"{version} went live for all sessions."
    if ramp.state != State.RUNNING:
        return f"All sessions go to {live}."
    if ramp.test_wanted_at is not None:
        return "It goes on once its self-test has passed, in a moment."
    plan = ramp.rules
    waits = _waits(plan.stages[ramp.stage], ramp.stage_since, numbers.in_stage, now or timezone.now())
    if ramp.stage + 1 < len(plan.stages):
        following = f"Next stage ({share_words(plan.stages[ramp.stage + 1].share)})"
        return f"{following} in at least {waits}, if nothing is found." if waits else f"{following} in a moment."
    if plan.finish == "person":
        return f"Ready to finish in {waits}." if waits else "All stages are done. Finish it when you are ready."
    if plan.finish == "nothing_found":
        return f"Live for all sessions in at least {waits}, if nothing is found." if waits else "Finishes in a moment."
    margin = f"{100 * plan.margin:g} points"
    after = f"in at least {waits}, and " if waits else ""
    return (
        f"Live for all sessions {after}once failures are shown to be higher by less than {margin}: "
        f"the proof has {shown_wealth(numbers.proof)} of {PROVED:g}."
    )


def _waits(stage: Stage, since: datetime, final: int, now: datetime) -> str:
    """Name what the stage still lacks: `12 minutes and 30 sessions`; empty where it lacks nothing."""
    left = since + timedelta(minutes=stage.minutes) - now
    minutes, sessions = math.ceil(max(0.0, left.total_seconds()) / 60), max(0, stage.sessions - final)
    counts = [(minutes, "minute"), (sessions, "session")]
    return " and ".join(f"{count:,} {word}{'' if count == 1 else 's'}" for count, word in counts if count)
