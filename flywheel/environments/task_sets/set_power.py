"""Plan what a frozen set can show by its project's gate policy, before running it; see `core.evidence.gate.gate_power`.

What its baseline is like is read off an eval of it: the newest of the version that is meant (the live one where none
is), else the newest of any; where there is none yet, planning defaults stand and the plan says so.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random

from django.db.models import Case, Count, IntegerField, Value, When

from flywheel.core.evidence.gate.decision import Policy
from flywheel.core.evidence.gate.gate_power import Power, power_of
from flywheel.core.evidence.statistics.eval_metrics import Row
from flywheel.core.evidence.statistics.eval_scope import BASELINE_SAMPLES, SAMPLES, Part, Rates, Scope, rates_of
from flywheel.core.text.number_words import percent
from flywheel.edge.jobs import State
from flywheel.environments import ledger
from flywheel.environments.models import MEASURED, Split, TaskSet

GUARDS = "guards a success"
"""Stands for the bucket of a task that was made of a success."""
MOST_READ = 1000
"""Tasks of an eval that rates are read off, drawn at random: more would make a page wait and a plan no surer."""
_MEASURED = ("score", "success", "parts", "tokens_in", "tokens_out", "cost_usd", "latency_ms")


@dataclass(frozen=True, slots=True)
class Measured:
    """A set's scope, and where what is assumed of it comes from."""

    scope: Scope
    source: str
    """The eval that the rates were read off; empty for planning defaults."""


@dataclass(frozen=True, slots=True)
class SetPower:
    """The plan of a set."""

    power: Power
    measured: Measured
    policy: str
    """By whose rules: the project's newest, or the defaults."""

    @property
    def assumed(self) -> str:
        """The plan's grounds, as a sentence."""
        scope, rates = self.measured.scope, self.measured.scope.rates
        known = [f"{percent(rates.success)} success"]
        known += [f"{percent(rates.invalid, 1)} invalid outputs"] if rates.invalid is not None else []
        known += [f"{percent(rates.unsafe, 1)} side effects"] if rates.unsafe is not None else []
        source = f"as in {self.measured.source}" if self.measured.source else "assumed, as nothing was evaluated yet"
        arms = "{1} attempts of the candidate at each task and {0} of the baseline".format(*scope.samples)
        return (
            f"A plan by {self.policy}: {arms}, {', '.join(known)} ({source}), the two versions' chances correlated by "
            f"{rates.kept:g} from task to task, nothing worse, no regression suites."
        )


def set_power(task_set: TaskSet, version: int | None = None) -> SetPower | None:
    """Plan what the set can show of a candidate beside this version, by its key; None without held-out tasks."""
    measured = measured_scope(task_set, version)
    if measured is None:
        return None
    newest = task_set.project.policies.order_by("-version").first()
    policy = Policy.from_dict(newest.rules) if newest else Policy()
    return SetPower(power_of(policy, measured.scope), measured, str(newest or "the default policy"))


def measured_scope(task_set: TaskSet, version: int | None = None) -> Measured | None:
    """Return the set's measured parts with what is known of the version; None without held-out tasks."""
    members = task_set.members.filter(split__in=MEASURED).order_by()
    counted = members.values_list("split", "task__bucket", "task__cluster").annotate(count=Count("pk"))
    parts: dict[str, Counter[str]] = {split: Counter() for split in MEASURED}
    slices: dict[str, Counter[str]] = {}
    for split, bucket, cluster, count in counted:
        parts[split][cluster] += count
        if split == Split.HELD_OUT:
            slices.setdefault(bucket or GUARDS, Counter())[cluster] += count
    if not parts[Split.HELD_OUT]:
        return None
    rates, samples, source = _baseline(task_set, version)
    scope = Scope(
        held_out=Part.of(parts[Split.HELD_OUT].values()),
        samples=(samples, SAMPLES),
        sealed=Part.of(parts[Split.SEALED].values()),
        slices={name: Part.of(sizes.values()) for name, sizes in sorted(slices.items())},
        rates=rates,
        opening=1 + len(ledger.sealed_openings(task_set)) if parts[Split.SEALED] else 1,
    )
    return Measured(scope, source)


def _baseline(task_set: TaskSet, version: int | None) -> tuple[Rates, int, str]:
    """Return rates, samples and name of the eval that tells most of the version; planning defaults without one."""
    agent = task_set.environment_version.environment.agent
    meant = version or (agent.live_id if agent else None)
    runs = task_set.eval_runs.filter(split=Split.HELD_OUT, state=State.SUCCEEDED).select_related("version__agent")
    is_meant = Case(When(version=meant, then=Value(0)), default=Value(1), output_field=IntegerField())
    run = runs.order_by(is_meant, "-pk").first()
    if run is None:
        return Rates(), BASELINE_SAMPLES, ""
    results = run.results.order_by("task", "sample")
    if run.task_count > MOST_READ:
        tasks = task_set.members.filter(split=Split.HELD_OUT).order_by("task").values_list("task", flat=True)
        results = results.filter(task__in=Random(task_set.pk).sample(list(tasks), MOST_READ))
    found = results.values_list("task", "task__cluster", "sample", *_MEASURED)
    rows = [Row(str(task), cluster, sample, *told) for task, cluster, sample, *told in found]
    return rates_of(rows), run.samples, f"{run} of {run.version}"
