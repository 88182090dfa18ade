"""Forms for releases by steps: the plan that an approver approves, and a move of a ramp.

Shares, margins and parts of the chance of error are entered in percent.
"""

from collections.abc import Mapping
from decimal import Decimal
from itertools import zip_longest
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError

from flywheel.accounts.models import Project
from flywheel.core.evidence.ramp.ramp_plan import (
    ALPHA,
    BUCKET,
    FINISHES,
    MOST_COPIES,
    MOST_HELD_BACK,
    MOST_STAGES,
    SIGNALS,
    THENS,
    WHOLE,
    Holdback,
    Plan,
    Shadow,
    Stage,
)
from flywheel.edge.refusals import refusal_shown
from flywheel.promotions.models import ShadowVerdict
from flywheel.promotions.ramps.ramp_proposals import LiveTraffic, reach_words
from flywheel.promotions.ramps.ramp_words import UNITS
from flywheel.trajectories.annotations.project_buckets import name_of

CELLS: Final = ("share", "sessions", "minutes")
MOST_ROWS: Final = 2 * MOST_STAGES
"""Rows that are read at all."""
_SHARE = forms.DecimalField(min_value=Decimal("0.01"), max_value=Decimal("99.99"), decimal_places=2)
_SESSIONS = forms.IntegerField(min_value=1, max_value=1_000_000)
_MINUTES = forms.FloatField(min_value=0, max_value=60 * 24 * 30)


class StageRows(forms.Widget):
    """Rows of three fields, whose names occur once in each."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[dict[str, str]]:
        columns = [data.getlist(cell)[:MOST_ROWS] for cell in CELLS]
        return [dict(zip(CELLS, row, strict=True)) for row in zip_longest(*columns, fillvalue="")]


class Stages(forms.Field):
    """The stages of a plan, whose shares rise."""

    widget = StageRows

    def clean(self, value: Any) -> list[Stage]:
        stages: list[Stage] = []
        for number, row in enumerate(value or (), 1):
            stage = stage_of(number, row)
            if stages and stage.share <= stages[-1].share:
                before = stages[-1].share * 100 / WHOLE
                raise ValidationError(
                    f"Stage {number}: shares rise, and {stage.share * 100 / WHOLE:g}% comes after {before:g}%."
                )
            stages.append(stage)
        if not stages:
            raise ValidationError("Add a stage.")
        return stages


def stage_of(number: int, row: Mapping[str, str]) -> Stage:
    """Read a row. Raises ValidationError, which says what would be right."""
    share = _read(
        _SHARE,
        row["share"],
        f"Stage {number}: the share is a percentage above 0 and below 100 with at most two decimals, such as 25. All "
        "sessions come with the finish.",
    )
    sessions = _read(_SESSIONS, row["sessions"], f"Stage {number}: enter the sessions as a whole number, at least 1.")
    minutes = _read(_MINUTES, row["minutes"], f"Stage {number}: enter the minutes, from 0 to 43200.")
    return Stage(int(share * 100 * WHOLE // 10_000), sessions, minutes)


def _read(field: forms.Field, text: str, problem: str) -> Any:
    try:
        return field.clean(text)
    except ValidationError:
        raise ValidationError(problem) from None


class PlanForm(forms.Form):
    """A plan, with a part of the chance of error for each signal of the proposed one."""

    stages = Stages(label="Stages")
    finish = forms.ChoiceField(
        choices=[(key, words[0].upper() + words[1:]) for key, words in FINISHES.items()],
        widget=forms.RadioSelect,
        label="It goes live for all sessions",
    )
    margin = forms.FloatField(min_value=0.1, max_value=50)
    quiet = forms.FloatField(
        min_value=1 / 60,
        max_value=1440,
        label="A session is over after, minutes",
        help_text="Without a call.",
    )
    wait = forms.FloatField(
        min_value=0.01, max_value=720, label="Wait for its outcome, hours", help_text="Then it counts as missing."
    )

    has_shadow = forms.BooleanField(
        required=False,
        label="Shadow first",
        help_text="Copies of the live version's calls go to the candidate. Nobody gets its answers, and nothing that "
        "it asks for is done.",
    )
    shadow_sessions = forms.IntegerField(
        required=False, min_value=1, max_value=MOST_COPIES, label="Over after, sessions compared"
    )
    shadow_minutes = forms.FloatField(required=False, min_value=1, max_value=60 * 24 * 30, label="Or after, minutes")
    shadow_calls = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MOST_COPIES,
        label="Budget, calls",
        help_text="When it is used up, the shadow is over.",
    )
    shadow_tokens = forms.IntegerField(
        required=False, min_value=1, max_value=10**12, label="Budget, tokens", help_text="Leave blank for no limit."
    )
    shadow_dollars = forms.FloatField(
        required=False, min_value=0.01, max_value=1e6, label="Budget, dollars", help_text="Leave blank for no limit."
    )
    shadow_then = forms.ChoiceField(
        required=False,
        choices=[(key, words[0].upper() + words[1:]) for key, words in THENS.items()],
        label="After the shadow",
    )
    has_holdback = forms.BooleanField(
        required=False,
        label="Holdback after it goes live",
        help_text="A share of the sessions stays with the version before, so that the comparison goes on. If harm is "
        "found, that version is made live again.",
    )
    held_share = forms.DecimalField(
        required=False,
        min_value=Decimal("0.01"),
        max_value=Decimal(MOST_HELD_BACK * 100) / WHOLE,
        decimal_places=2,
        label="Held back, % of sessions",
    )
    held_sessions = forms.IntegerField(
        required=False, min_value=1, max_value=1_000_000, label="At least, sessions of both versions"
    )
    held_days = forms.FloatField(required=False, min_value=0, max_value=90, label="And at least, days")

    def __init__(self, proposed: Plan, project: Project, traffic: LiveTraffic, data: Any = None) -> None:
        super().__init__(data, initial=_entered(proposed))
        self.traffic = traffic
        self.labels = {key: _label(project, key) for key in {**SIGNALS, **proposed.alphas}}
        for key in self.labels:
            if key != "failed":
                self.fields[f"on-{key}"] = forms.BooleanField(required=False, label=self.labels[key])
                self.fields[f"margin-{key}"] = forms.FloatField(required=False, min_value=0.1, max_value=50)
            self.fields[f"alpha-{key}"] = forms.FloatField(
                required=key == "failed", min_value=0.001, max_value=100 * ALPHA
            )
            if key in UNITS:
                self.fields[f"limit-{key}"] = forms.FloatField(required=False, min_value=1e-9, max_value=1e9)

    def clean(self) -> dict[str, Any]:
        for switch, fields in REQUIRED_WITH.items():
            for name in fields if self.cleaned_data.get(switch) else ():
                if self.cleaned_data.get(name) in (None, "") and name not in self.errors:
                    self.add_error(name, "This field is required.")
        for key in self._chosen():
            if self.cleaned_data.get(f"alpha-{key}") is None and f"alpha-{key}" not in self.errors:
                self.add_error(f"alpha-{key}", "Enter its part of the 5%, or switch the signal off.")
            if key in UNITS and not self.cleaned_data.get(f"limit-{key}") and f"limit-{key}" not in self.errors:
                self.add_error(f"limit-{key}", "Enter a limit, or switch the signal off.")
        for key in set(self.labels) - set(self._chosen()):
            if self.cleaned_data.get(f"margin-{key}") is not None:
                self.add_error(f"margin-{key}", "Switch the signal on, or leave its margin blank.")
        total = sum(self.cleaned_data.get(f"alpha-{key}") or 0 for key in self._chosen())
        if total > 100 * ALPHA * (1 + 1e-9):
            self.add_error("alpha-failed", f"Together the signals have {total:g}%, and a ramp has {100 * ALPHA:g}%.")
        return self.cleaned_data

    def plan(self) -> Plan | None:
        """The plan that was entered; None with all that is wrong noted at its fields."""
        if not self.is_valid():
            return None
        chosen = self._chosen()
        names = {f"{part}s.{key}": f"{part}-{key}" for part in ("alpha", "limit", "margin") for key in self.labels}
        names |= {"holdback.share": "held_share"}
        with refusal_shown(self, quiet_s="quiet", wait_s="wait", alphas="alpha-failed", **names):
            return Plan(
                stages=tuple(self.cleaned_data["stages"]),
                finish=self.cleaned_data["finish"],
                margin=self.cleaned_data["margin"] / 100,
                margins={key: margin / 100 for key in chosen if (margin := self.cleaned_data.get(f"margin-{key}"))},
                alphas={key: self.cleaned_data[f"alpha-{key}"] / 100 for key in chosen},
                limits={key: self.cleaned_data[f"limit-{key}"] for key in chosen if key in UNITS},
                quiet_s=self.cleaned_data["quiet"] * 60,
                wait_s=self.cleaned_data["wait"] * 3600,
                shadow=self._shadow(),
                holdback=self._holdback(),
            )
        return None

    def _shadow(self) -> Shadow | None:
        said = self.cleaned_data
        return (
            Shadow(
                sessions=said["shadow_sessions"],
                minutes=said["shadow_minutes"],
                calls=said["shadow_calls"],
                tokens=said["shadow_tokens"],
                dollars=said["shadow_dollars"],
                then=said["shadow_then"],
            )
            if said["has_shadow"]
            else None
        )

    def _holdback(self) -> Holdback | None:
        said = self.cleaned_data
        share = int((said["held_share"] or 0) * 100 * WHOLE // 10_000)
        return Holdback(share, said["held_sessions"], said["held_days"]) if said["has_holdback"] else None

    @property
    def parts(self) -> list[tuple[forms.BoundField, list[forms.BoundField]]]:
        """The switch of each optional part, and its fields."""
        return [
            (self[switch], [self[name] for name in self.fields if name.startswith(f"{of}_")])
            for switch, of in (("has_shadow", "shadow"), ("has_holdback", "held"))
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The stages as they are entered, each with the words of its reach, empty where it cannot be read."""
        rows: list[dict[str, Any]] = list(self["stages"].value() or ())
        return [{**row, "reach": self._reach(number, row)} for number, row in enumerate(rows, 1)]

    @property
    def signals(self) -> list[dict[str, Any]]:
        """The fields of each signal."""
        return [
            {
                "key": key,
                "label": label,
                "on": self[f"on-{key}"] if key != "failed" else None,
                "alpha": self[f"alpha-{key}"],
                "limit": self[f"limit-{key}"] if key in UNITS else None,
                "unit": UNITS.get(key, ""),
            }
            for key, label in self.labels.items()
        ]

    @property
    def margins(self) -> list[tuple[str, forms.BoundField]]:
        """The label of each signal, and the field of its margin."""
        return [(label, self["margin" if key == "failed" else f"margin-{key}"]) for key, label in self.labels.items()]

    @property
    def times(self) -> list[forms.BoundField]:
        return [self["quiet"], self["wait"]]

    @property
    def has_margin_errors(self) -> bool:
        """Whether anything is wrong in the margins, which are folded at first."""
        return self.is_bound and any(name.startswith("margin") for name in self.errors)

    @property
    def has_signal_errors(self) -> bool:
        """The same of the signals and waiting times."""
        shown = {"stages", "finish", "__all__"}
        return self.is_bound and any(
            name not in shown and not name.startswith(("shadow_", "held_", "has_", "margin")) for name in self.errors
        )

    def _chosen(self) -> list[str]:
        return [key for key in self.labels if key == "failed" or self.cleaned_data.get(f"on-{key}")]

    def _reach(self, number: int, row: Mapping[str, Any]) -> str:
        try:
            stage = stage_of(number, {cell: str(row[cell]) for cell in CELLS})
            alpha = self.fields["alpha-failed"].clean(self["alpha-failed"].value()) / 100
        except ValidationError:
            return ""
        return reach_words(number, stage, Plan(alphas={"failed": alpha}), self.traffic.rate_taken)


class MoveForm(forms.Form):
    """A move of a ramp by a person."""

    generation = forms.IntegerField(widget=forms.HiddenInput, min_value=0)
    reason = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 2, "maxlength": 2000}), max_length=2000, help_text="Recorded permanently."
    )


REQUIRED_WITH: Final = {
    "has_shadow": ("shadow_sessions", "shadow_minutes", "shadow_calls", "shadow_then"),
    "has_holdback": ("held_share", "held_sessions", "held_days"),
}
"""Fields that an optional part needs."""


class VerdictForm(forms.Form):
    """A person's word on a pair of answers."""

    verdict = forms.ChoiceField(
        choices=[(key, str(label)[0].upper() + str(label)[1:]) for key, label in ShadowVerdict.Verdict.choices],
        widget=forms.RadioSelect,
        label="Which answer is better?",
    )
    note = forms.CharField(
        required=False, widget=forms.Textarea(attrs={"rows": 2, "maxlength": 2000}), max_length=2000, label="Note"
    )


def _label(project: Project, key: str) -> str:
    return SIGNALS[key].label if key in SIGNALS else name_of(project, key.removeprefix(BUCKET))


def _entered(plan: Plan) -> dict[str, Any]:
    """The plan in the units of the form."""
    entered: dict[str, Any] = {
        "stages": [
            {"share": f"{stage.share * 100 / WHOLE:g}", "sessions": stage.sessions, "minutes": f"{stage.minutes:g}"}
            for stage in plan.stages
        ],
        "finish": plan.finish,
        "margin": round(100 * plan.margin, 6),
        "quiet": round(plan.quiet_s / 60, 6),
        "wait": round(plan.wait_s / 3600, 6),
    }
    shadow, held = plan.shadow or Shadow(), plan.holdback or Holdback()
    entered |= {f"shadow_{name}": getattr(shadow, name) for name in Shadow.__dataclass_fields__}
    entered |= {"has_shadow": plan.shadow is not None, "has_holdback": plan.holdback is not None}
    entered |= {"held_share": held.share * 100 / WHOLE, "held_sessions": held.sessions, "held_days": held.days}
    for key in {**SIGNALS, **plan.alphas}:
        alpha = plan.alphas.get(key)
        entered[f"alpha-{key}"] = None if alpha is None else round(100 * alpha, 6)
        entered[f"on-{key}"] = key in plan.signals
        entered[f"limit-{key}"] = plan.limits.get(key)
        entered[f"margin-{key}"] = round(100 * plan.margins[key], 6) if key in plan.margins else None
    return entered
