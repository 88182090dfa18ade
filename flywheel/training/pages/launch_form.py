"""The launch page's form: what a person chose so far, each value with what is wrong with it.

The same form is read at every change of a choice (then nothing is demanded yet) and when it is sent. Values stay as
they were written; a setting that nobody changed follows the default of the algorithm that is chosen now.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from django import forms
from django.utils.html import format_html

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.agents.references import UnknownReference, find_version
from flywheel.core import recipes
from flywheel.core.errors import FieldError
from flywheel.core.recipes import SETTINGS, Setting
from flywheel.core.recipes.training_settings import GROUPS, OWN
from flywheel.edge.numbers import BIGINT, form_key, number
from flywheel.edge.refusals import Refused
from flywheel.edge.schema_form import ObjectForm, json_or_text
from flywheel.environments.models import RewardRecipe, TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.environments.versions.reward_recipes import find_reward_recipe
from flywheel.evals.models import EvalRun
from flywheel.evals.reward_audits.learnable_tasks import unlearnable
from flywheel.templatetags.numbers import count
from flywheel.training.launch import run_budgets
from flywheel.training.launch.fix_recommendation import lightest, recommendation_for
from flywheel.training.launch.run_budgets import UNITS
from flywheel.training.launch.run_control import (
    LORA,
    MAX_RANK,
    LaunchRequest,
    check_settings,
    check_tuning,
    default_settings,
    usual_mode,
)
from flywheel.training.models import Dataset, Recommendation, TrainingRun
from flywheel.training.pipelines.stage_gates import LIMITS

PREFIX = "set."
MOST_EARLIER = 4_000
"""Characters in which the stages before this one are kept: the form's address has them too."""
_ROWS = ("key", "base", "task_set", "dataset", "rollouts", "teacher", "reward", "replay")
_FIRST = {
    **dict.fromkeys((*_ROWS, "leave_out", "algorithm", "reason", "passed_on", "grid", *UNITS, "earlier", *LIMITS), ""),
    "environment_weights": "",
    "mode": "full",
    "seed": "1",
    "rank": str(LORA["rank"]),
    "alpha": str(LORA["alpha"]),
}
"""The choices, and what they are while nothing is said."""


class LaunchForm(ObjectForm):
    """The choices as texts, cleaned to the rows that they name; then a field for each setting of the algorithm."""

    def __init__(self, project: Project, data: Mapping[str, str]) -> None:
        fields, texts = {name: forms.CharField(required=False) for name in _FIRST}, {**_FIRST, **data}
        for name, label in run_budgets.LABELS.items():
            fields[name].label = label
        super().__init__(fields, texts, auto_id=False, use_required_attribute=False)
        self.project = project
        self.full_clean()
        base_before = self._base_before()
        is_as_shown = base_before is not None and data.get("mode") == usual_mode(base_before)
        if not data.get("mode") or is_as_shown:  # nobody has chosen one
            texts["mode"] = self.cleaned_data["mode"] = usual_mode(self.base)
        before = self._defaults_before(base_before)
        self.defaults = default_settings(self.known.name, self.base, texts["mode"])
        for name, default in self.defaults.items():
            key, shown, written = PREFIX + name, write(default), texts.get(PREFIX + name)
            is_untouched = written is None or written == write(before.get(name))
            self.initial[key], texts[key] = shown, shown if is_untouched else str(written).strip()
            self.fields[key] = _field(SETTINGS[name])

    def clean_key(self) -> uuid.UUID:
        """The key that the form was given; another for a form that is new or lost it."""
        return form_key(self.cleaned_data["key"])

    def clean_base(self) -> Version | None:
        ref = self.cleaned_data["base"]
        return self._row(find_version, ref) if ref else first_base(self.project)

    def clean_task_set(self) -> TaskSet | None:
        ref = self.cleaned_data["task_set"]
        return self._row(find_task_set, ref) if ref else first_set(self.project, self.base)

    def clean_teacher(self) -> Version | None:
        ref = self.cleaned_data["teacher"]
        return self._row(find_version, ref) if ref else None

    def clean_reward(self) -> RewardRecipe | None:
        ref = self.cleaned_data["reward"]
        return self._row(find_reward_recipe, ref) if ref else None

    def clean_dataset(self) -> Dataset | None:
        """One that is kept, instead of one that is built of the set."""
        ref = self.cleaned_data["dataset"]
        if not ref or not self.task_set:
            return None
        name, _, version = ref.partition("@")
        row = Dataset.objects.filter(project=self.project, name=name, version=number(version) or 0).first()
        if row is None or row.task_set_id not in (None, self.task_set.pk):
            raise forms.ValidationError(f"there is no dataset {ref[:100]} of {self.task_set}")
        return row

    def clean_replay(self) -> Dataset | None:
        """Demonstrations that are imitated beside the attempts."""
        ref = self.cleaned_data["replay"]
        name, _, version = ref.partition("@")
        row = Dataset.objects.filter(project=self.project, name=name, version=number(version) or 0).first()
        if ref and row is None:
            raise forms.ValidationError(f"there is no dataset {ref[:100]}")
        return row

    def clean_rollouts(self) -> EvalRun | None:
        return self._eval(self.cleaned_data["rollouts"])

    def clean_leave_out(self) -> EvalRun | None:
        """The eval whose nearly always or never solved tasks shall not be practised."""
        return self._eval(self.cleaned_data["leave_out"])

    def clean_earlier(self) -> list[dict[str, str]]:
        """The stages of a pipeline before the one that the form is about, each as this form sends its choices."""
        text = self.cleaned_data["earlier"]
        with suppress(ValueError, RecursionError):
            found = json.loads(text[:MOST_EARLIER]) if text else []
            if isinstance(found, list) and all(isinstance(each, dict) for each in found):
                return [{name: str(value) for name, value in each.items()} for each in found]
        raise forms.ValidationError("the stages before this one cannot be read; start again with the first")

    def clean(self) -> dict[str, Any]:
        """Take the algorithm that was chosen, else the recommended one, and leave out what it cannot learn from."""
        chosen = self.cleaned_data
        self.recommendation = _recommendation(self.base, self.task_set)
        first, dataset = lightest(self.recommendation) if self.recommendation else None, chosen.get("dataset")
        offer = recipes.offered(data=dataset.kind) if dataset else recipes.offered(fix=first["fix"] if first else "")
        name = chosen.get("algorithm") or offer.name
        if name not in recipes.ALGORITHMS:
            self.refuse("algorithm", f"{name!r} is unknown; use one of {', '.join(recipes.ALGORITHMS)}")
        self.known = recipes.ALGORITHMS.get(name, recipes.ALGORITHMS["sft"])
        if dataset and dataset.kind != self.known.data:
            chosen["dataset"] = dataset = None  # another algorithm was chosen, which cannot learn from it
        if dataset or self.known.data == "tasks":
            chosen["rollouts"] = None  # it has its rows already, or practises the tasks themselves
        if not self.known.has_teacher:
            chosen["teacher"] = None
        if not self.known.is_reinforced:
            chosen["reward"] = None
        if not self.known.practises:
            chosen["replay"] = None
        if dataset or self.known.data != "tasks":
            chosen["leave_out"] = None  # what is imitated need not be solved now and then
        return chosen

    @property
    def base(self) -> Version | None:
        return self.cleaned_data.get("base")

    @property
    def task_set(self) -> TaskSet | None:
        return self.cleaned_data.get("task_set")

    @property
    def earlier(self) -> list[dict[str, str]]:
        return self.cleaned_data.get("earlier") or []

    @property
    def earlier_text(self) -> str:
        """The same, as its field holds them."""
        return json.dumps(self.earlier) if self.earlier else ""

    @property
    def stage(self) -> int:
        """The number of the stage that it is about."""
        return len(self.earlier) + 1

    @property
    def refs(self) -> dict[str, str]:
        """The version and the set by name; as it was written, where it names none."""
        return {name: str(self.cleaned_data.get(name) or self[name].data or "") for name in ("base", "task_set")}

    @property
    def shown(self) -> list[forms.BoundField]:
        """The settings that are put forward."""
        return [self[PREFIX + name] for name in self.defaults if SETTINGS[name].is_shown(self.known)]

    @property
    def budget_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in UNITS]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The settings that are folded away, by what they are about: `{"label", "fields", "is_open"}`."""
        found: dict[str, list[forms.BoundField]] = {name: [] for name in (OWN, *GROUPS)}
        for name in self.defaults:
            if not SETTINGS[name].is_shown(self.known):
                found[SETTINGS[name].group].append(self[PREFIX + name])
        return [
            {
                "label": label,
                "fields": fields,
                "is_open": any(each.errors or each.value() != each.initial for each in fields),
            }
            for label, fields in found.items()
            if fields
        ]

    @property
    def others_open(self) -> bool:
        """Whether something is to be seen among the settings that are folded away."""
        own = any(self[name].errors for name in ("passed_on", "seed"))
        return bool(self["passed_on"].value() or own or any(each["is_open"] for each in self.groups))

    @property
    def budget_open(self) -> bool:
        return any(each.value() or each.errors for each in self.budget_fields)

    @property
    def sweep_text(self) -> str:
        """The grid as it was written."""
        return self["grid"].value() or ""

    @property
    def has_environments(self) -> bool:
        """Whether it practises in several environments, which may have weights."""
        dataset = self.cleaned_data.get("dataset")
        return bool(dataset and dataset.is_placed and self.known.practises)

    @property
    def left_out(self) -> list[int]:
        """Numbers of the tasks that shall not be practised."""
        run = self.cleaned_data.get("leave_out")
        return [task.number for task in unlearnable(run)] if run else []

    @property
    def settings_now(self) -> dict[str, Any]:
        """The settings as far as they can be read; the others at their defaults."""
        found = dict(self.defaults)
        for name in self.defaults:
            with suppress(FieldError):
                found[name] = SETTINGS[name].check(self.value.get(PREFIX + name, ""))
        return found

    @property
    def tuning_now(self) -> dict[str, Any]:
        """The tuning as far as it can be read; an adapter's rank at its default where it cannot."""
        mode = self["mode"].data
        if mode not in recipes.MODES or mode == "full":
            return {"mode": "full"}
        ranks = {name: number(self.cleaned_data.get(name, ""), most=MAX_RANK) or LORA[name] for name in LORA}
        return {"mode": mode, **ranks}

    def gate(self) -> dict[str, float]:
        """The limits of the gate before the stage, as shares; what cannot be read is noted at its field."""
        shares: dict[str, float] = {}
        for name in LIMITS if self.earlier else ():
            text = self.cleaned_data[name].removesuffix("%").strip()
            if text:
                with suppress(ValueError):
                    shares[name] = float(text) / 100
                if not 0 <= shares.get(name, -1) <= 1:
                    self.refuse(name, f"{text[:20]!r} is not a percentage from 0 to 100")
        return shares

    def request(self) -> LaunchRequest | None:
        """Return the launch that the form asks for; None with every problem noted at its field."""
        chosen, settings, tuning = self.cleaned_data, self._settings(), self._tuning()
        self.grid = self._grid()
        seed = number(chosen.get("seed", ""), most=BIGINT)
        if seed is None:
            self.refuse("seed", f"{self['seed'].data!r} is not a whole number")
        budget = self._budget()
        weights = self._environment_weights()
        if self.base and tuning:
            with self.refusals():
                check_settings(self.known, self.base, tuning, settings)
        for name in ("base", "task_set"):
            if not chosen.get(name) and name not in self.errors:
                self.refuse(name, "is missing")
        if self.errors:
            return None
        return LaunchRequest(
            **{name: chosen[name] for name in _ROWS},
            algorithm=self.known.name,
            recommendation=self.recommendation,
            settings=settings,
            tuning=tuning or {},
            seed=seed or 0,
            budget=budget or {},
            environment_weights=weights,
            override_reason=chosen["reason"],
            leave_out=self.left_out,
        )

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Go on after a refusal inside, which is shown at its field."""
        try:
            yield
        except Refused as error:
            self.refuse(error.field, error.problem)

    def refuse(self, name: str, problem: str) -> None:
        """Show at its field what a verb refused."""
        name = name.removeprefix("settings.").removeprefix("tuning.").removeprefix("budget.")
        for lines in ("grid", "environment_weights"):
            if name.startswith(f"{lines}."):
                name, problem = lines, f"{name.removeprefix(f'{lines}.')}: {problem}"
        if name.startswith(recipes.PASSED_ON):
            name, problem = "passed_on", f"{name}: {problem}"
        elif PREFIX + name in self.fields:
            name = PREFIX + name
        name = name.removeprefix("gate.")
        names = {"override_reason": "reason", "kind": "algorithm", "gate": next(iter(LIMITS))}
        super().refuse(names.get(name, name), problem)

    def unread(self, text: str) -> str:
        return text

    def _settings(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name in self.defaults:
            if self[PREFIX + name].value() != self[PREFIX + name].initial:
                try:
                    given[name] = SETTINGS[name].check(self.value.get(PREFIX + name, ""))
                except FieldError as error:
                    self.refuse(name, error.problem)
        for name, value in self._lines("passed_on", recipes.PASSED_ON, "trl.field = value"):
            given[name] = json_or_text(value)
        return given

    def _grid(self) -> dict[str, list[Any]]:
        """The values of each name that a sweep combines; empty for a single run."""
        found = {}
        for name, text in self._lines("grid", ("",), "learning_rate = 1e-4, 3e-4"):
            values = json_or_text(f"[{text}]")
            found[name] = (
                values if isinstance(values, list) else [json_or_text(part.strip()) for part in text.split(",")]
            )
        return found

    def _environment_weights(self) -> dict[str, list[Any]]:
        """The weights of each environment at the first step and at the last, where there are several."""
        lines = self._lines("environment_weights", ("",), "mail = 1, 0.2") if self.has_environments else ()
        return {name: [json_or_text(part.strip()) for part in text.split(",")] for name, text in lines}

    def _lines(self, field: str, beginnings: tuple[str, ...], form: str) -> Iterator[tuple[str, str]]:
        """Name and value of each line of a field, up to one that is none."""
        for line in filter(str.strip, self.cleaned_data.get(field, "").splitlines()):
            name, sign, value = (part.strip() for part in line.partition("="))
            if not sign or not name.startswith(beginnings):
                self.refuse(field, f"{line.strip()!r} is not of the form {form}")
                return
            yield name, value

    def _budget(self) -> dict[str, float] | None:
        with self.refusals():
            return run_budgets.read(self.cleaned_data)
        return None

    def _tuning(self) -> dict[str, Any] | None:
        value: dict[str, Any] = {"mode": self.cleaned_data.get("mode")}
        if value["mode"] in recipes.MODES and value["mode"] != "full":
            texts = {name: self.cleaned_data.get(name, "") for name in LORA}
            value |= {name: number(text, most=BIGINT) or text for name, text in texts.items()}
        with self.refusals():
            return check_tuning(value)
        return None

    def _base_before(self) -> Version | None:
        """The version that the form was shown with."""
        before = self.data.get("settings_base", "")
        try:
            return find_version(self.project, before) if before else None
        except UnknownReference:
            return None

    def _defaults_before(self, base: Version | None) -> dict[str, Any]:
        """The defaults that the settings in the form were shown with."""
        algorithm, mode = self.data.get("settings_of", ""), self.data.get("settings_mode", "full")
        return default_settings(algorithm, base, mode) if algorithm in recipes.ALGORITHMS else {}

    def _row(self, find: Callable[[Project, str], Any], ref: str) -> Any:
        try:
            return find(self.project, ref)
        except UnknownReference as error:
            raise forms.ValidationError(str(error)) from None

    def _eval(self, text: str) -> EvalRun | None:
        if not text or not self.task_set:
            return None
        rows = EvalRun.objects.filter(project=self.project).select_related("task_set__environment_version")
        row = rows.filter(pk=number(text, most=BIGINT) or 0).first()
        if row is None:
            raise forms.ValidationError(f"there is no eval {text[:20]!r} in this project")
        if row.task_set.environment_version.environment_id != self.task_set.environment_version.environment_id:
            raise forms.ValidationError(f"{row} is about another environment than {self.task_set}")
        return row


def as_data(run: TrainingRun) -> dict[str, str]:
    """A run's choices as this form sends them, to launch another like it. A dataset that is not built of its task set
    is named."""
    rows = run.dataset
    is_kept = rows.recipe.get("card") or rows.mix or rows.task_set_id is None
    data = {
        "base": str(run.base),
        "task_set": str(run.task_set),
        "algorithm": run.algorithm,
        "teacher": str(run.teacher or ""),
        "reward": str(run.reward_recipe or ""),
        "replay": str(run.replay or ""),
        "environment_weights": "\n".join(
            f"{name} = {first:g}, {last:g}" for name, (first, last) in run.environment_weights.items()
        ),
        "seed": str(run.seed),
        "reason": run.override_reason,
        "dataset": str(rows) if is_kept else "",
        "rollouts": str(rows.recipe.get("eval_run") or ""),
        **{name: str(value) for name, value in run.tuning.items()},
        **{name: write(value) for name, value in run.budget.items()},
    }
    return data | settings_as_data(run.settings)


def settings_as_data(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a run as this form sends them: a field each, and lines that are passed on to the libraries."""
    passed = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if "." in name]
    own = {PREFIX + name: write(value) for name, value in settings.items() if name in SETTINGS}
    return {**own, "passed_on": "\n".join(passed)}


def write(value: Any) -> str:
    """A setting's value as a field holds it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _field(setting: Setting) -> forms.Field:
    choices = [("true", "yes"), ("false", "no")] if setting.type is bool else [(each, each) for each in setting.choices]
    if choices:
        field: forms.Field = forms.TypedChoiceField(choices=choices, coerce=json_or_text)
    else:
        kind = forms.IntegerField if setting.type is int else forms.FloatField
        field = kind(widget=forms.TextInput({"inputmode": "decimal", "autocomplete": "off"}))
    field.label = setting.name.replace("_", " ").capitalize()
    field.help_text = format_html("{}{}", setting.why, _bounds(setting))
    field.widget.attrs["id"] = f"id-{setting.name}"
    return field


def _bounds(setting: Setting) -> str:
    low, high = setting.min, setting.max
    if setting.choices or low is None:
        return ""
    words = f"{_bound(low)} to {_bound(high)}" if high is not None else f"at least {_bound(low)}"
    return format_html(' <span class="nowrap">{}.</span>', words)


def _bound(value: float) -> str:
    return count(value) if value >= 1000 else f"{value:g}"


def _recommendation(base: Version | None, task_set: TaskSet | None) -> Recommendation | None:
    """Ask the ladder; what it says of a hosted version is not kept, since no run can be launched from that."""
    if base is None or task_set is None:
        return None
    return recommendation_for(base, task_set, is_kept=base.weights_id is not None)


def first_base(project: Project) -> Version | None:
    """Find the live version that can be trained, else the newest that can, else the newest."""
    every = Version.objects.filter(agent__project=project).select_related("agent").order_by("-pk")
    versions = every.filter(weights__isnull=False)
    live = versions.filter(agent__live__isnull=False, pk__in=project.agents.values("live")).order_by("-pk").first()
    return live or versions.first() or every.first()


def first_set(project: Project, base: Version | None) -> TaskSet | None:
    """The usual one of the agent's environments, else of the project."""
    sets = TaskSet.objects.filter(project=project)
    own = sets.filter(environment_version__environment__agent=base.agent_id).usual() if base else None
    return own or sets.usual()
