"""Training runs, the devices that they hold, their events, and what they measured on the way."""

import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, models
from django.db.models import Q
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Now

from flywheel.accounts.models import NoticeEvent
from flywheel.accounts.notices import notify
from flywheel.agents.models import Artifact, RewardModel, Version
from flywheel.core.recipes import ALGORITHMS, MODES, NEEDS, lacking
from flywheel.edge.jobs import Job, JobEvent, State, ownerless
from flywheel.edge.refusals import NoRoom
from flywheel.environments.models import RewardRecipe, TaskSet
from flywheel.evals.models import AuditOverride, EvalRun, RewardAudit
from flywheel.system import devices
from flywheel.training.models.datasets import Dataset
from flywheel.training.models.pipelines import PipelineStage
from flywheel.training.models.recommendations import Recommendation


class TrainingRun(Job):
    """One training, in its own run directory, of one frozen spec."""

    base = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="training_runs")
    dataset = models.ForeignKey(Dataset, on_delete=models.PROTECT, related_name="training_runs")
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, related_name="training_runs")
    baseline = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The base version's eval on the held-out split: the dashed line, and later the other arm of the comparison."""
    algorithm = models.CharField(max_length=16)
    """A key of `core.recipes.ALGORITHMS`."""
    tuning = models.JSONField()
    """`{"mode": "full"}` or `{"mode": "lora" or "qlora", "rank", "alpha"}`"""
    settings = models.JSONField()
    seed = models.PositiveIntegerField(default=1)
    device = models.CharField(max_length=8, blank=True)
    """The label of the devices that it wants, of `system.devices`; empty for any that a worker has itself."""
    held = models.JSONField(default=dict, blank=True)
    """The devices that it holds while it runs, and those it held last: `{"host", "label", "names"}`."""
    spec_digest = models.CharField(max_length=64)
    forecast = models.JSONField(default=dict, blank=True)
    """The peak memory and the time of a step as they were forecast at launch (`launch_estimate.expected`); empty where
    they were not known."""
    outside_calls = models.JSONField(default=dict, blank=True)
    """What it asks of others while it trains: `{"expected", "judges", "simulator", "teacher", "questions"}`. `expected`
    is the most by the forecast at launch, judges and simulator report as in evals, a hosted teacher as the simulator,
    and `questions` counts by kind. Empty where it asks nobody."""
    machine = models.JSONField(default=dict, blank=True)
    """What its trainer told of its device: `{"kind", "name", "memory"}`; empty until then."""
    sweep = models.UUIDField(null=True, blank=True, db_index=True)
    """The key of the sweep that it was launched with; None for a run by itself."""
    recommendation = models.ForeignKey(
        Recommendation, on_delete=models.SET_NULL, null=True, blank=True, related_name="training_runs"
    )
    teacher = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """Whose probabilities it learns; None for an algorithm without a teacher."""
    reward_recipe = models.ForeignKey(RewardRecipe, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """What it learns from beside each task's verifier; None where that is its reward."""
    replay = models.ForeignKey(Dataset, on_delete=models.PROTECT, null=True, blank=True, related_name="replayed_by")
    """Demonstrations that it imitates beside its attempts."""
    environment_weights = models.JSONField(default=dict, blank=True)
    """Of each environment of a mix, at the first step and at the last: `{name: [first, last]}`; empty where its rows
    take turns."""
    override_reason = models.TextField(blank=True)
    """Why not what was recommended; required then."""
    reward_audit = models.ForeignKey(
        RewardAudit, on_delete=models.PROTECT, null=True, blank=True, related_name="training_runs"
    )
    """The newest finished audit of the reward that it learns from; None where it learns from none (`reward_lock`)."""
    audit_override = models.ForeignKey(
        AuditOverride, on_delete=models.PROTECT, null=True, blank=True, related_name="training_runs"
    )
    """What let it be launched although that audit was not green."""
    budget = models.JSONField(default=dict, blank=True)
    """What it may take at most, `launch.run_budgets`; empty for as much as it needs."""
    device_hour = models.FloatField(null=True, blank=True)
    """Dollars of an hour of a device as the project had them at launch; None where nobody had named them."""
    stage = models.ForeignKey(PipelineStage, on_delete=models.PROTECT, null=True, blank=True, related_name="runs")
    """The stage of a pipeline that it is an attempt at."""
    events_read = models.PositiveBigIntegerField(default=0)
    """Bytes of `events.jsonl` that are in the database."""
    checkpoint_step = models.PositiveIntegerField(null=True, blank=True)
    chosen_step = models.PositiveIntegerField(null=True, blank=True)
    """The step whose weights the produced version has, where validation chose them; None for the last step's."""
    produced = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="produced_by")
    reward_model = models.ForeignKey(
        RewardModel, on_delete=models.PROTECT, null=True, blank=True, related_name="training_runs"
    )
    """What a run of that algorithm made, which is no version."""
    evaluation = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The produced version's eval, started when the run succeeds."""

    cancel_entry = "training.cancel"
    resume_entry = "training.resume"
    device_column = "device"

    def __str__(self) -> str:
        return f"r-{self.pk}"

    def when_over(self, state: State) -> None:
        """Whoever launched it is told."""
        notify(
            project=self.project,
            event=NoticeEvent.RUN_FAILED if state == State.FAILED else NoticeEvent.RUN_ENDED,
            subject=f"run {self}",
            title=f"Training run {self} {state}",
            text=f"{ALGORITHMS[self.algorithm].label} of {self.base}",
            url=f"/p/{self.project.slug}/training/runs/{self.pk}/",
            to=[self.created_by],
        )

    def width(self, label: str) -> int:
        """The number of devices of a label it takes. The processes of a run share the cores, and have a GPU each."""
        return int(self.settings.get("processes", 1)) if label == "cuda" else 1

    def room(self) -> dict[str, Any]:
        """Devices of this worker's machine that nobody else holds, to be held by it.

        The devices of a machine and label are handed out in the order of the runs' numbers: one that waits for more of
        them than are free is overtaken by none that came later, unless the machine will never have as many, or cannot
        tune as it wants. Who went silent holds nothing once its lease has run out.
        """
        offered, host = devices.offered(), socket.gethostname()
        if self.device != "ray" and (lacks := self._lacks()):
            raise NoRoom(f"it waits for a worker with {lacks}; {host} has none")
        for label in [self.device] if self.device else devices.LOCAL:
            if names := offered.get(label):
                with connection.cursor() as cursor:  # one claim of these at a time
                    cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"{label} devices of {host}"])
                return {"held": {"host": host, "label": label, "names": self._take(host, label, names)}}
        raise NoRoom

    def _lacks(self) -> str:
        """Name what it needs and this worker's machine lacks; empty where it has all."""
        wanted = (self.tuning["mode"], self.settings.get("rollouts", ""))
        return next((NEEDS[each] for each in wanted if each in NEEDS and lacking(each)), "")

    def _take(self, host: str, label: str, names: Sequence[str]) -> list[str]:
        width, total = self.width(label), len(names)
        wanted = f"the {devices.WORDS[label][0]}" if total == 1 else f"{width} of the {devices.counted(total, label)}"
        if width > total:
            raise NoRoom(f"it waits for a worker with {devices.counted(width, label)}; {host} has {total}")
        earlier = TrainingRun.objects.filter(ownerless(), device__in=("", label), pk__lt=self.pk)
        rows = [run for run in earlier.only("settings", "tuning") if not run._lacks()]
        if any(run.width(label) <= total for run in rows):
            raise NoRoom(f"it waits behind an earlier run for {wanted} of {host}")
        others = TrainingRun.objects.filter(held__host=host, held__label=label).exclude(pk=self.pk)
        held = others.filter(state=State.RUNNING, lease_until__gte=Now()).values_list("held__names", flat=True)
        free = [name for name in names if name not in set(chain.from_iterable(held))]
        if width > len(free):
            raise NoRoom(f"it waits for {wanted} of {host}; {len(free) or 'none'} free")
        return free[:width]

    @classmethod
    def that_made(cls, versions: Iterable[Version | int]) -> "models.QuerySet[TrainingRun]":
        """The runs whose weights these versions have, as they were at the end or at a kept checkpoint."""
        versions = list(versions)
        of_checkpoints = cls.objects.filter(checkpoint_versions__version__in=versions).values("pk")
        return cls.objects.filter(Q(produced__in=versions) | Q(pk__in=of_checkpoints))

    @property
    def algorithm_label(self) -> str:
        known = ALGORITHMS.get(self.algorithm)
        return known.label if known else self.algorithm

    @property
    def makes_policy(self) -> bool:
        """Whether a version comes of it, which acts; else a reward model, which scores."""
        return self.algorithm not in ALGORITHMS or ALGORITHMS[self.algorithm].makes_policy

    @property
    def tuning_label(self) -> str:
        return MODES[self.tuning["mode"]]

    @property
    def task_sets(self) -> list[TaskSet]:
        """The sets whose held-out tasks measure it, the one that it is compared by first."""
        return self.dataset.task_sets or [self.task_set]

    @property
    def directory(self) -> Path:
        """Its run directory (`docs/design/run-directory.md`), on the machines that share the data directory."""
        return Path(settings.RUNS_DIR) / str(self)

    @property
    def trained(self) -> Artifact | None:
        """The weights, or the adapter, that it made; None until it has succeeded."""
        if self.reward_model is not None:
            return self.reward_model.weights
        if self.produced is None:
            return None
        return self.produced.adapter if self.tuning["mode"] != "full" else self.produced.weights

    def trained_seconds(self, until: int | None = None) -> float | None:
        """Time that its steps, evaluations and validations took, up to a step or in all; None where no step was timed.
        A step that came again after a resume counts once."""
        points = self.points.all() if until is None else self.points.filter(step__lte=until)
        timed = {"step_time_s": [Point.Kind.STEP], "seconds": [Point.Kind.EVAL, Point.Kind.VALIDATION]}
        sums = []
        for name, kinds in timed.items():
            value = Cast(KeyTextTransform(name, "values"), models.FloatField())
            sums.append(points.filter(kind__in=kinds).aggregate(total=models.Sum(value))["total"])
        steps, evals = sums
        return None if steps is None and until != 0 else (steps or 0.0) + (evals or 0.0)

    def device_hours(self, until: int | None = None) -> float | None:
        """Hours of its devices, `trained_seconds` of each of its processes; None where no step was timed."""
        seconds = self.trained_seconds(until)
        return None if seconds is None else self._hours(seconds)

    def usd(self, until: int | None = None) -> float | None:
        """Dollars of these hours; None where they have no price."""
        return self.usd_of(self.trained_seconds(until))

    def usd_of(self, seconds: float | None) -> float | None:
        """Dollars of so much of its time, such as a validation's; None where it is not known, or has no price."""
        return None if seconds is None or self.device_hour is None else self._hours(seconds) * self.device_hour

    def with_usd(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The figures of a validation or a held-out evaluation, those of each environment and slice too, with `usd`,
        the dollars of their `seconds`."""
        found = {**values, "usd": self.usd_of(values.get("seconds"))}
        for name in found.keys() & {"environments", "slices"}:
            found[name] = {each: self.with_usd(own) for each, own in found[name].items()}
        return found

    def _hours(self, seconds: float) -> float:
        return seconds / 3600 * float(self.settings.get("processes", 1))

    def tokens(self, until: int | None = None) -> int | None:
        """Tokens of prompts and answers that it has processed up to a step or in all; None where nobody counts them."""
        steps = self.points.filter(kind=Point.Kind.STEP)
        steps = steps if until is None else steps.filter(step__lte=until)
        tokens = (steps.order_by("-step").values_list("values", flat=True).first() or {}).get("tokens")
        return None if tokens is None else round(tokens)

    @property
    def remaining(self) -> timedelta | None:
        """By the pace of its last steps; None where nothing can be said yet."""
        if self.state != State.RUNNING or not self.total:
            return None
        recent = list(self.points.filter(kind=Point.Kind.STEP).order_by("-step")[:50].values_list("step", "at"))
        if len(recent) < 2 or recent[0][0] == recent[-1][0]:
            return None
        # A restart leaves a gap that says nothing of the pace.
        gaps = sorted((new[1] - old[1]) / (new[0] - old[0]) for new, old in pairwise(recent))
        kept = gaps[: len(gaps) - len(gaps) // 20]
        return sum(kept, timedelta()) / len(kept) * (self.total - self.done)


class TrainingEvent(JobEvent):
    job = models.ForeignKey(TrainingRun, on_delete=models.CASCADE, related_name="events")


class Point(models.Model):
    """Measurements at one step: training metrics, validation or the held-out evaluation. A resumed step replaces its
    own."""

    class Kind(models.TextChoices):
        STEP = "step"
        EVAL = "eval"
        SAMPLES = "samples"
        VALIDATION = "validation"

    run = models.ForeignKey(TrainingRun, on_delete=models.CASCADE, related_name="points")
    kind = models.CharField(max_length=16, choices=Kind)
    step = models.PositiveIntegerField()
    at = models.DateTimeField()
    values = models.JSONField()
    """`{metric: number}`; for `eval` and `validation` `{"success", "score", "n", "unscored", "parts", "invalid",
    "tokens", "latency_ms", "slices", "seconds"}`, with `reward` and `rewarded` where it is validation of a run that
    practises; for `samples` a list."""

    class Meta:
        ordering = ["run", "kind", "step"]
        constraints = [models.UniqueConstraint(fields=["run", "kind", "step"], name="point_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.step} of {self.run}"
