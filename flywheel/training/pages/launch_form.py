"""The launch page's form: what a person chose so far, each value with what is wrong with it.

The same form is read at every change of a choice (then nothing is demanded yet) and when it is sent. Values stay as
they were written; a setting that nobody changed follows the default of the algorithm that is chosen now.
"""

import contextlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.agents.references import UnknownReference, find_version
from flywheel.core import recipes
from flywheel.core.recipes import SETTINGS, Setting
from flywheel.edge.numbers import BIGINT, INTEGER, number
from flywheel.edge.refusals import Refused
from flywheel.environments.models import TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.evals.models import EvalRun
from flywheel.evals.reward_audits.learnable_tasks import unlearnable
from flywheel.templatetags.numbers import count
from flywheel.training.launch.fix_recommendation import lightest
from flywheel.training.launch.run_control import LORA, check_settings, check_tuning, default_settings
from flywheel.training.models import Dataset, Recommendation, TrainingRun

PREFIX = "set."


@dataclass(slots=True)
class Field:
    """One setting as the form shows it."""

    setting: Setting
    default: str
    value: str
    error: str = ""

    @property
    def name(self) -> str:
        return PREFIX + self.setting.name

    @property
    def label(self) -> str:
        return self.setting.name.replace("_", " ").capitalize()

    @property
    def kind(self) -> str:
        return self.setting.type.__name__

    @property
    def bounds(self) -> str:
        low, high = self.setting.min, self.setting.max
        if self.setting.choices or low is None:
            return ""
        return f"{_bound(low)} to {_bound(high)}" if high is not None else f"at least {_bound(low)}"

    @property
    def is_changed(self) -> bool:
        return self.value != self.default


@dataclass(slots=True)
class LaunchForm:
    """What was chosen and what is wrong with it, by field."""

    project: Project
    data: Mapping[str, str]
    key: str = ""
    errors: dict[str, str] = field(default_factory=dict)
    base_ref: str = ""
    base: Version | None = None
    task_set_ref: str = ""
    task_set: TaskSet | None = None
    dataset: Dataset | None = None
    """One that is kept, instead of one that is built of the set."""
    rollouts: EvalRun | None = None
    leave_out: EvalRun | None = None
    """The eval whose nearly always or never solved tasks shall not be practised."""
    algorithm: str = ""
    mode: str = "full"
    rank: str = str(LORA["rank"])
    alpha: str = str(LORA["alpha"])
    seed: str = "1"
    reason: str = ""
    passed_on: str = ""
    fields: list[Field] = field(default_factory=list)

    @classmethod
    def read(cls, project: Project, data: Mapping[str, str]) -> "LaunchForm":
        """The references and plain values. `choose` goes on once the ladder was asked."""
        form = cls(project, data, key=_key(data.get("key", "")))
        form.base_ref = data.get("base", "") or _ref(_first_base(project))
        if form.base_ref:
            try:
                form.base = find_version(project, form.base_ref)
                form.base_ref = str(form.base)
            except UnknownReference as error:
                form.errors["base"] = str(error)
        form.task_set_ref = data.get("task_set", "") or _ref(_first_set(project, form.base))
        if form.task_set_ref:
            try:
                form.task_set = find_task_set(project, form.task_set_ref)
                form.task_set_ref = str(form.task_set)
            except UnknownReference as error:
                form.errors["task_set"] = str(error)
        form.dataset = _dataset(form)
        form.rollouts = _eval(form, "rollouts")
        form.leave_out = _eval(form, "leave_out")
        form.mode = data.get("mode", "full")
        for name in ("rank", "alpha", "seed", "reason", "passed_on"):
            setattr(form, name, data.get(name, getattr(form, name)))
        return form

    def choose(self, recommendation: Recommendation | None) -> None:
        """Take the algorithm that was chosen, else the recommended one, and read its settings."""
        first = lightest(recommendation) if recommendation else None
        fix = first["fix"] if first else ""
        offer = recipes.offered(data=self.dataset.kind) if self.dataset else recipes.offered(fix=fix)
        self.algorithm = self.data.get("algorithm", "") or offer.name
        if self.algorithm not in recipes.ALGORITHMS:
            known = ", ".join(recipes.ALGORITHMS)
            self.errors["algorithm"] = f"{self.algorithm!r} is unknown, one of {known} is wanted"
            self.algorithm = "sft"
        if self.dataset is not None and self.dataset.kind != self.known.data:
            self.dataset = None  # another algorithm was chosen, which cannot learn from it
        if self.dataset is not None:
            self.rollouts = self.leave_out = None  # it has its rows already
        if self.known.data == "tasks":
            self.rollouts = None  # it practises the tasks themselves
        else:
            self.leave_out = None  # what is imitated need not be solved now and then
        defaults = default_settings(self.algorithm, self.base, self.mode)
        before = self._defaults_before()
        for name, default in defaults.items():
            written = self.data.get(PREFIX + name)
            is_own = written is not None and written != write(before.get(name))
            value = written.strip() if is_own and written is not None else write(default)
            self.fields.append(Field(SETTINGS[name], write(default), value))

    @property
    def known(self) -> recipes.Algorithm:
        return recipes.ALGORITHMS[self.algorithm]

    @property
    def shown(self) -> list[Field]:
        return [each for each in self.fields if each.setting.shown]

    @property
    def others(self) -> list[Field]:
        return [each for each in self.fields if not each.setting.shown]

    @property
    def others_open(self) -> bool:
        """Whether something is to be seen among the settings that are folded away."""
        return bool(self.passed_on or "passed_on" in self.errors or any(f.error or f.is_changed for f in self.others))

    @property
    def left_out(self) -> list[int]:
        """Numbers of the tasks that shall not be practised."""
        return [task.number for task in unlearnable(self.leave_out)] if self.leave_out else []

    @property
    def uuid(self) -> uuid.UUID:
        return uuid.UUID(self.key)

    @property
    def settings_now(self) -> dict[str, Any]:
        """The settings as far as they can be read; the others at their defaults."""
        found = default_settings(self.algorithm, self.base, self.mode)
        for each in self.fields:
            with contextlib.suppress(ValueError):
                found[each.setting.name] = each.setting.check(_typed(each.setting, each.value))
        return found

    def check(self) -> dict[str, Any]:
        """What `launch` takes beside the references, every problem noted at its field."""
        given = self._settings()
        tuning = self._tuning()
        seed = _whole(self.seed)
        if seed is None:
            self.errors["seed"] = f"{self.seed!r} is not a whole number"
        if self.base and tuning:
            try:
                check_settings(self.known, self.base, tuning, given)
            except Refused as error:
                self.refuse(error.field, error.problem)
        return {
            "settings": given,
            "tuning": tuning,
            "seed": seed,
            "override_reason": self.reason,
            "leave_out": self.left_out,
        }

    def refuse(self, where: str, problem: str) -> None:
        """Show at its field what a verb refused."""
        name = where.removeprefix("settings.").removeprefix("tuning.")
        for each in self.fields:
            if each.setting.name == name:
                each.error = problem
                self.errors[PREFIX + name] = problem
                return
        if name.startswith(recipes.PASSED_ON):
            name, problem = "passed_on", f"{name}: {problem}"
        self.errors[{"override_reason": "reason", "kind": "algorithm"}.get(name, name)] = problem

    def _settings(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for each in self.fields:
            if not each.is_changed:
                continue
            try:
                given[each.setting.name] = each.setting.check(_typed(each.setting, each.value))
            except ValueError as error:
                self.refuse(f"settings.{each.setting.name}", str(error).partition(": ")[2])
        for line in filter(str.strip, self.passed_on.splitlines()):
            name, sign, value = (part.strip() for part in line.partition("="))
            if not sign or not name.startswith(recipes.PASSED_ON):
                self.errors["passed_on"] = f"{line.strip()!r} is not of the form trl.field = value"
                break
            given[name] = _json(value)
        return given

    def _tuning(self) -> dict[str, Any] | None:
        value: dict[str, Any] = {"mode": self.mode}
        if self.mode == "lora":
            value |= {"rank": _whole(self.rank) or self.rank, "alpha": _whole(self.alpha) or self.alpha}
        try:
            return check_tuning(value)
        except Refused as error:
            self.refuse(error.field, error.problem)
            return None

    def _defaults_before(self) -> dict[str, Any]:
        """The defaults that the settings in the form were shown with."""
        algorithm, mode = self.data.get("settings_of", ""), self.data.get("settings_mode", "full")
        if algorithm not in recipes.ALGORITHMS:
            return {}
        before = self.data.get("settings_base", "")
        try:
            base = find_version(self.project, before) if before else None
        except UnknownReference:
            base = None
        return default_settings(algorithm, base, mode)


def as_data(run: TrainingRun) -> dict[str, str]:
    """A run's choices as this form sends them, to launch another like it."""
    data = {
        "base": str(run.base),
        "task_set": str(run.task_set),
        "algorithm": run.algorithm,
        "seed": str(run.seed),
        "reason": run.override_reason,
        "dataset": str(run.dataset) if run.dataset.recipe.get("card") or run.dataset.mix else "",
        "rollouts": str(run.dataset.recipe.get("eval_run") or ""),
        **{name: str(value) for name, value in run.tuning.items()},
        **{PREFIX + name: write(value) for name, value in run.settings.items() if name in SETTINGS},
    }
    passed = [f"{name} = {json.dumps(value)}" for name, value in run.settings.items() if name not in SETTINGS]
    return data | {"passed_on": "\n".join(passed)}


def write(value: Any) -> str:
    """A setting's value as a field holds it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bound(value: float) -> str:
    return count(value) if value >= 1000 else f"{value:g}"


def _typed(setting: Setting, text: str) -> Any:
    """The text as the setting's type where it can be read as such, else the text itself, which its check refuses."""
    if setting.type is bool:
        return {"true": True, "false": False}.get(text, text)
    if setting.type is str:
        return text
    if setting.type is int:
        whole = number(text.strip(), least=-INTEGER)
        return text if whole is None else whole
    try:
        return float(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _whole(text: str) -> int | None:
    return number(text.strip(), most=BIGINT)


def _key(text: str) -> str:
    """The key that the form was given; another for a form that is new or lost it."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return str(uuid.uuid4())


def _ref(row: Version | TaskSet | None) -> str:
    return str(row) if row else ""


def _first_base(project: Project) -> Version | None:
    """What is live and can be trained, else the newest version that can."""
    versions = Version.objects.filter(agent__project=project, weights__isnull=False).select_related("agent")
    live = versions.filter(agent__live__isnull=False, pk__in=project.agents.values("live")).order_by("-pk").first()
    return live or versions.order_by("-pk").first()


def _first_set(project: Project, base: Version | None) -> TaskSet | None:
    """The usual one of the agent's environments, else of the project."""
    sets = TaskSet.objects.filter(project=project)
    own = sets.filter(environment_version__environment__agent=base.agent_id).usual() if base else None
    return own or sets.usual()


def _dataset(form: LaunchForm) -> Dataset | None:
    ref = form.data.get("dataset", "")
    if not ref or not form.task_set:
        return None
    name, _, version = ref.partition("@")
    found = Dataset.objects.filter(project=form.project, name=name, version=_whole(version) or 0).first()
    if found is None or found.task_set_id != form.task_set.pk:
        form.errors["dataset"] = f"there is no dataset {ref[:100]} of {form.task_set}"
        return None
    return found


def _eval(form: LaunchForm, name: str) -> EvalRun | None:
    text = form.data.get(name, "")
    if not text or not form.task_set:
        return None
    number = _whole(text)
    rows = EvalRun.objects.filter(project=form.project).select_related("task_set__environment_version")
    found = rows.filter(pk=number or 0).first()
    if found is None:
        form.errors[name] = f"there is no eval {text[:20]!r} in this project"
    elif found.task_set.environment_version.environment_id != form.task_set.environment_version.environment_id:
        form.errors[name], found = f"{found} is about another environment than {form.task_set}", None
    return found
