"""Alerts of a training run: what its recorded measurements show that a person should act on.

Every rule is a function of the series alone. A series that *grew* did so from its first fifth to its last by at least
what the rule asks for, and by more than two standard errors of the difference of these means, so that noise is no
growth; it takes ten steps at the least. The rules and their thresholds are told in `docs/guides/trainer.md`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from flywheel.core.evidence.statistics.estimates import proportion
from flywheel.core.text.number_words import percent

FEWEST = 10
"""Steps in a row, or in all, that a rule takes."""
GAIN, FLAT, SLIP = 0.1, 0.02, 0.05
"""Of rewards and scores: what is a rise, what is none, and what is a fall."""
SOLVED = 0.95
"""A mean reward from which on little is left to learn."""
LONGER, LONGER_BY = 1.5, 20.0
"""A length has grown by this factor, and by so many tokens."""
CUT, CUT_BY = 0.25, 0.1
REPEATED, REPEATED_BY = 0.2, 0.1
WORSE = 0.05
"""Of attempts that do harm, are unreadable or unscored."""
FEWEST_LABELS, DISPUTED = 5, 0.05
"""Labelled attempts that say something of a verifier, and a share of failures among those that it passes that is more
than a slip."""
DULL = 0.8
"""Of groups whose attempts all earn the same."""
COLLAPSED, LEAST_ENTROPY = 0.1, 0.01
LAST_STEPS, MANY = 10, 0.25
"""Of so many steps on average, a share of episodes that end early."""
NEAR = 0.5
"""Of the limit at which a run stops because its server samples another policy: so near it is too near."""
DRIFTED, DRIFTED_BY = 2.0, 0.1
"""The server's mismatch has grown by this factor, and by such a share of the limit."""
LEAST_WEIGHT = 0.1
"""Of what a token that the server sampled may weigh at least, on average of the last steps."""
PLATEAU = 40
"""Steps in whose second half a reward that does not rise has stopped to."""

Series = Sequence[tuple[int, float]]
"""Steps, from the first on, and what was measured at them."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """A run's recorded measurements."""

    steps: Sequence[tuple[int, Mapping[str, float]]] = ()
    """Each step's metrics, or every n-th one's."""
    held_out: Series = ()
    """Success on held-out tasks."""
    validation: Series = ()
    """Mean score on the tasks that are kept aside."""
    is_finished: bool = False
    tasks: int | None = None
    """Held-out tasks of each evaluation that were scored."""
    labelled: int = 0
    """Attempts that the verifier passed and people labelled."""
    overruled: Sequence[int] = ()
    """The steps of those that people call failures."""
    watched: Sequence[str] = ()
    """Parts of the reward that nothing is learnt from."""

    def series(self, name: str) -> Series:
        return [(step, metrics[name]) for step, metrics in self.steps if name in metrics]

    @property
    def reward(self) -> Series:
        return self.series("reward_mean")


@dataclass(frozen=True, slots=True)
class Alert:
    kind: str
    saw: str
    """Numbers and steps, as a sentence without its end."""
    act: str = ""
    """What would help, as a sentence without its end; empty where the finding says it."""
    first: int | None = None
    """The steps whose attempts show it."""
    last: int | None = None
    order: str = "reward"
    """The order in which those that show it come first, and their kind: as the list of a run's attempts has them."""
    only: str = ""


def alerts(measured: Measurements) -> list[Alert]:
    """All alerts of a run, those that put its result in doubt first."""
    return [alert for rule in RULES for alert in rule(measured)]


@dataclass(frozen=True, slots=True)
class _Growth:
    """The means of a series' first and last fifth."""

    before: float
    after: float
    error: float
    """Standard error of their difference."""
    last: Series

    @property
    def gain(self) -> float:
        return self.after - self.before

    def is_by(self, least: float) -> bool:
        return self.gain >= least and self.gain > 2 * self.error


def _growth(series: Series) -> _Growth | None:
    """None for a series of fewer than ten steps."""
    if len(series) < FEWEST:
        return None
    fifth = len(series) // 5
    first, last = ([value for _, value in part] for part in (series[:fifth], series[-fifth:]))
    error = math.sqrt((variance(first) + variance(last)) / fifth)
    return _Growth(fmean(first), fmean(last), error, series[-fifth:])


def _hacking(measured: Measurements) -> Iterator[Alert]:
    """Reward that rises while what it should stand for does not: the verifier may be fooled."""
    growth = _growth(measured.reward)
    if growth is None or not growth.is_by(GAIN):
        return
    flat = [_flat_scores(measured), *(_flat_part(measured, name, growth) for name in measured.watched)]
    if not any(flat):
        return
    yield Alert(
        "reward_hacking",
        f"reward rose by {growth.gain:.2f} (from {growth.before:.2f} to {growth.after:.2f}) and "
        f"{'; '.join(filter(None, flat))}",
        "look at the attempts with the best rewards: if they are no good, cancel the run and fix the verifier",
        *_span(growth.last),
    )


def _overruled(measured: Measurements) -> Iterator[Alert]:
    """People call attempts failures that the verifier passes, more than slips of a label would explain."""
    if measured.labelled < FEWEST_LABELS or not measured.overruled:
        return
    share = proportion(len(measured.overruled), measured.labelled)
    if share.mean is None or share.low is None or share.high is None or share.low <= DISPUTED:
        return
    yield Alert(
        "overruled",
        f"people call {len(measured.overruled)} of {measured.labelled} labelled attempts failures that the verifier "
        f"passes: {percent(share.mean)}, in all probably {percent(share.low)} to {percent(share.high)}",
        "fix the verifier, whose probes they are by their labels, and audit it again; cancel the run if it learns from "
        "such attempts",
        min(measured.overruled),
        max(measured.overruled),
        only="overruled",
    )


def _flat_scores(measured: Measurements) -> str:
    """That the validation score, or without one held-out success, did not rise; empty where it did, or is too new."""
    is_validated = len(measured.validation) >= 3
    scores = measured.validation if is_validated else measured.held_out
    if len(scores) < 3:
        return ""
    (first_at, start), (last_at, last) = scores[0], scores[-1]
    if max(last, fmean([score for _, score in scores[-max(1, len(scores) // 3) :]])) > start + FLAT:
        return ""
    what = "the validation score" if is_validated else "held-out success"
    return f"{what} did not: {percent(start)} at step {first_at}, {percent(last)} at step {last_at}"


def _flat_part(measured: Measurements, name: str, reward: _Growth) -> str:
    """That no rise of a watched part is seen; empty where one is, where the part is too new, or where its sample is too
    small to rule out a rise half as large as the reward's."""
    series = measured.series(f"reward/{name}")
    own = _growth(series)
    if own is None or own.is_by(FLAT) or own.gain + 2 * own.error >= reward.gain / 2:
        return ""
    return f"the watched part {name} did not: {own.before:.2f}, then {own.after:.2f} (judged in {len(series)} steps)"


def _falling(measured: Measurements) -> Iterator[Alert]:
    """A fall by more than two standard errors of the difference; of a best among many, so that it may still be luck."""
    if len(measured.held_out) < 3:
        return
    (best_at, best), (last_at, last) = max(measured.held_out, key=lambda pair: pair[1]), measured.held_out[-1]
    noise = 2 * math.sqrt((best * (1 - best) + last * (1 - last)) / measured.tasks) if measured.tasks else 0.0
    if best - last > max(SLIP, noise):
        of = f" (of {measured.tasks} tasks)" if measured.tasks else ""
        fell = f"from {percent(best)} at step {best_at} to {percent(last)} at step {last_at}{of}"
        yield Alert(
            "overfitting",
            f"held-out success fell {fell}: possible overfitting",
            "train for fewer steps, or keep a share for validation, so that the best weights are given",
            best_at + 1,
            last_at,
            order="step",
        )


def _no_better(measured: Measurements) -> Iterator[Alert]:
    """A finished run whose validation never rose above what the policy could before its first step."""
    scores = dict(measured.validation)
    later = [score for step, score in scores.items() if step]
    if 0 in scores and later and measured.is_finished and max(later) <= scores[0]:
        yield Alert(
            "no_better",
            f"no step scored better on validation than the start ({scores[0]:.2f}, {max(later):.2f} at best)",
            "try more steps, another learning rate or other data",
        )


def _worse(measured: Measurements) -> Iterator[Alert]:
    for name, what, act in (
        ("reward/unsafe", "attempts that do harm", "raise unsafe_penalty, or cancel the run"),
        ("invalid_fraction", "answers in no readable form", "raise invalid_penalty, or lower the learning rate"),
        ("unscored", "attempts without a score", "read why in the attempts: the verifier fails at them"),
    ):
        growth = _growth(measured.series(name))
        if growth is not None and growth.is_by(WORSE):
            rose = f"from {percent(growth.before)} to {percent(growth.after)}"
            kind = name.removeprefix("reward/").removesuffix("_fraction")
            yield Alert(kind, f"{what} grew {rose} of all", act, *_span(growth.last), order="step", only=kind)


def _entropy(measured: Measurements) -> Iterator[Alert]:
    entropy = measured.series("entropy")
    if not entropy:
        return
    (start_at, start), bar = entropy[0], max(LEAST_ENTROPY, COLLAPSED * entropy[0][1])
    low = _at_end(entropy, lambda value: value < bar)
    if len(low) < FEWEST or _is_solved(measured, low):
        return
    yield Alert(
        "entropy_collapse",
        f"entropy fell from {start:.3g} at step {start_at} to {low[-1][1]:.3g} at step {low[-1][0]}: the policy has "
        "stopped trying other answers",
        "a lower learning rate, a higher temperature or entropy_coef would help",
        *_span(low),
    )


def _no_variance(measured: Measurements) -> Iterator[Alert]:
    groups = measured.series("zero_variance_groups")
    dull = _at_end(groups, lambda value: value >= DULL)
    is_all = measured.is_finished and bool(groups) and all(value >= 1 for _, value in groups)
    if len(dull) < FEWEST and not is_all:
        return
    if is_all:
        steps, taught = f"from step {dull[0][0]} to {dull[-1][0]}, the last,", "so the run has learnt nothing from it"
        saw = f"{steps} all attempts in each group had the same reward, {taught}"
    else:
        steps, taught = f"since step {dull[0][0]} at least {percent(DULL)} of the groups", "which teaches nothing"
        saw = f"{steps} had attempts that all scored alike, {taught}"
    act = "easier tasks, demonstrations first, or a higher temperature would help"
    if _is_solved(measured, dull):
        act = "the tasks are solved: end the run, or train on harder ones"
    yield Alert("no_variance", saw, act, *_span(dull))


def _longer(measured: Measurements) -> Iterator[Alert]:
    """Length that grows without reward, or with a reward that is nothing elsewhere, and answers that are cut off."""
    length, reward = _growth(measured.series("completion_length_mean")), _growth(measured.reward)
    is_longer = length is not None and length.is_by(LONGER_BY) and length.after >= LONGER * length.before
    flat, pays = _flat_scores(measured), reward is not None and reward.gain >= SLIP
    if length is not None and is_longer and (flat or not pays):
        rose = "" if reward is None else f", and the reward by {reward.gain:.2f}"
        rose += f"; {flat}" if pays else ""
        yield Alert(
            "length",
            f"attempts grew from {length.before:.0f} to {length.after:.0f} tokens{rose}",
            "compare long attempts with short ones; a loss that does not favour length (dr_grpo, dapo) would help",
            *_span(length.last),
            order="longest",
        )
    cut = _growth(measured.series("truncated_fraction"))
    if cut is not None and cut.is_by(CUT_BY) and cut.after >= CUT:
        yield Alert(
            "truncated",
            f"answers that are cut off grew from {percent(cut.before)} to {percent(cut.after)}",
            "raise max_completion_length, or set mask_truncated_completions",
            *_span(cut.last),
            order="longest",
        )


def _repeating(measured: Measurements) -> Iterator[Alert]:
    growth = _growth(measured.series("repetition"))
    if growth is not None and growth.is_by(REPEATED_BY) and growth.after >= REPEATED:
        yield Alert(
            "repetition",
            f"attempts repeat themselves: {percent(growth.after)} of their text was there before in the same attempt, "
            f"against {percent(growth.before)} at first",
            "lower the learning rate, or raise beta so that the policy stays near its start",
            *_span(growth.last),
            order="longest",
        )


def _plateau(measured: Measurements) -> Iterator[Alert]:
    """A reward that rises no more although there is something left to earn."""
    reward = measured.reward
    half = reward[len(reward) // 2 :]
    if len(reward) < PLATEAU or measured.is_finished:
        return
    middle = len(half) // 2
    before, after = ([value for _, value in part] for part in (half[:middle], half[middle:]))
    gain, error = fmean(after) - fmean(before), math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    # Where noise could hide a rise of `SLIP` nothing is said.
    if abs(gain) > FLAT or 2 * error > SLIP or fmean(after) >= SOLVED:
        return
    yield Alert(
        "plateau",
        f"the reward has not risen since step {half[0][0]}: {fmean(before):.2f}, then {fmean(after):.2f}",
        "cancel the run and use its newest checkpoint, or go on with other tasks or a higher learning rate",
        *_span(half),
        order="worst",
    )


def _unlearning(measured: Measurements) -> Iterator[Alert]:
    """Preference learning that makes the right answer itself less likely, only less so than the wrong one."""
    growth = _growth(measured.series("chosen_logp"))
    if growth is not None and growth.gain <= -1.0:
        saw = f"the chosen answers became less likely (log-probability {growth.gain:+.1f})"
        yield Alert("unlearning", saw, "a higher beta keeps them likely")


def _ending_early(measured: Measurements) -> Iterator[Alert]:
    """Episodes that end for another reason than the policy's own: their verdicts say little about it."""
    for name, why, act in (
        ("broken_off_fraction", "are broken off", "a higher token limit or a shorter prompt would let them end"),
        ("out_of_turns_fraction", "run out of turns", "more turns, or a penalty for talking on, would let them end"),
    ):
        last = measured.series(name)[-LAST_STEPS:]
        if len(last) == LAST_STEPS and (share := fmean([value for _, value in last])) > MANY:
            kind = name.removesuffix("_fraction")
            saw = f"{percent(share)} of the last episodes {why}"
            yield Alert(kind, saw, act, *_span(last), order="step", only=kind)


def _mismatch(measured: Measurements) -> Iterator[Alert]:
    """A server whose log-probabilities drift from the trainer's, and have not reached the limit that ends the run: by
    the proofs, in which both are of one version, and by what its tokens weigh in the loss."""
    act = "the server runs the same model in the same precision, or restart it and resume the run"
    proof, limit = measured.series("sync_proof"), dict(measured.series("sync_limit"))
    growth, last = _growth(proof), proof[-LAST_STEPS:]
    if growth is not None and (most := limit.get(last[-1][0])):
        now = fmean([value for _, value in last])
        grew = growth.is_by(DRIFTED_BY * most) and growth.after >= DRIFTED * growth.before
        if grew or now >= NEAR * most:
            rose = f"grew from {growth.before:.2g} to {growth.after:.2g}" if grew else f"is {now:.2g}"
            yield Alert(
                "sampler_mismatch",
                f"the difference between the server's log-probabilities and the trainer's {rose} nats per token; at "
                f"{most:.2g} the run stops",
                f"check that {act}",
                *_span(growth.last if grew else last),
                order="step",
            )
    weights = _growth(measured.series("sampler_weight_min"))
    if weights is not None and weights.after < LEAST_WEIGHT and weights.before >= DRIFTED * weights.after:
        yield Alert(
            "sampler_weight",
            f"the least weight of a sampled token fell from {weights.before:.2g} to {weights.after:.2g}: the trainer "
            "finds some of the server's tokens unlikely",
            f"lower max_staleness or the learning rate if attempts are old; otherwise check that {act}",
            *_span(weights.last),
            order="step",
        )


RULES: tuple[Callable[[Measurements], Iterator[Alert]], ...] = (
    _hacking, _overruled, _falling, _no_better, _worse, _entropy, _no_variance, _longer, _repeating, _plateau,
    _unlearning, _ending_early, _mismatch,
)  # fmt: skip


def _at_end(series: Series, meets: Callable[[float], bool]) -> Series:
    """The last steps of a series, as far back as all of them meet it."""
    start = len(series)
    while start and meets(series[start - 1][1]):
        start -= 1
    return series[start:]


def _is_solved(measured: Measurements, during: Series) -> bool:
    rewards = [reward for step, reward in measured.reward if step >= during[0][0]]
    return bool(rewards) and fmean(rewards) >= SOLVED


def _span(series: Series) -> tuple[int, int]:
    return series[0][0], series[-1][0]
