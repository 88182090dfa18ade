"""A pipeline on the launch page: the one form, filled in for a stage after the other. A new prompt has a page of its
own (`prompt_stages`), and is named here by the version that has it.

The stages before the one that is shown travel in its field `earlier`, each as the texts that the form sent, without
what is at its default. They are read by the form again, so that nothing is checked in another way than a launch.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.forms import BoundField
from django.utils.http import urlencode

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.agents.references import find_version
from flywheel.core import recipes
from flywheel.edge.numbers import number
from flywheel.edge.refusals import Refused
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.training.launch.run_budgets import UNITS
from flywheel.training.launch.run_control import LaunchRequest
from flywheel.training.models import PROMPT, Pipeline, PipelineStage
from flywheel.training.models.pipelines import label_of
from flywheel.training.pages.launch_form import MOST_EARLIER, PREFIX, LaunchForm, settings_as_data
from flywheel.training.pipelines import pipeline_control
from flywheel.training.pipelines.pipeline_control import StageRequest
from flywheel.training.pipelines.prompt_stages import PromptRequest
from flywheel.training.pipelines.stage_gates import LIMITS

KEPT = ("mode", "rank", "alpha", "seed", "reason", "environment_weights", *UNITS, *LIMITS)
"""Choices that are kept as they were written; rows are kept by name, and settings where they are no default."""


def launch(form: LaunchForm, actor: Actor) -> Pipeline | None:
    """The pipeline of the stages before and the one in the form; None with everything that is wrong noted in it."""
    if (stages := _requests(form)) is not None:
        with _refusals(form):
            made, _ = pipeline_control.create(key=form.cleaned_data["key"], stages=stages, actor=actor)
            return made
    return None


def following(form: LaunchForm, actor: Actor) -> LaunchForm | None:
    """The empty form of the next stage, once the stages so far are right; None with everything that is wrong noted."""
    if (stages := _requests(form)) is not None:
        if len(stages) >= pipeline_control.MOST_STAGES:
            form.refuse("earlier", f"a pipeline has at most {pipeline_control.MOST_STAGES} stages")
            return None
        with _refusals(form):
            pipeline_control.check(stages, actor)
            run = stages[-1].run
            assert isinstance(run, LaunchRequest)
            earlier = [*form.earlier, _as_data(form, run)]
            if len(json.dumps(earlier)) > MOST_EARLIER:
                form.refuse("reason", "the stages so far are too long for this form; shorten reasons, or use the API")
                return None
            return _shown(form, earlier, {})
    return None


def before(form: LaunchForm) -> LaunchForm:
    """The form of the stage before the one that is shown, which is dropped."""
    *earlier, last = form.earlier or [{}]
    return _shown(form, earlier, last)


def prompt_before(form: LaunchForm) -> str:
    """The query of the page of the stage before, where that is a new prompt; empty where it is another."""
    last = form.earlier[-1] if form.earlier else {}
    if last.get("algorithm") != PROMPT:
        return ""
    return urlencode({"version" if name == "base" else name: text for name, text in last.items()})


def after_prompt(asked: PromptRequest, stage: PipelineStage) -> str:
    """The query with which the launch form goes on after a new prompt: with its seed and share, so that a run which
    keeps tasks aside keeps the same."""
    refs = {"base": str(asked.base), "task_set": str(asked.task_set)}
    chosen = {"algorithm": PROMPT, "draft": str(stage.draft), "seed": str(stage.seed)}
    settings = {name: str(value) for name, value in stage.settings.items()}
    kept = {"seed": chosen["seed"], f"{PREFIX}validation_share": settings["validation_share"]}
    return urlencode({**refs, **kept, "earlier": json.dumps([{**refs, **chosen, **settings}])})


def speaker(form: LaunchForm) -> Version | None:
    """The draft whose prompt the stage in the form learns with; None where it is the base's."""
    ref = next((each["draft"] for each in reversed(form.earlier) if each.get("draft")), "")
    return find_version(form.project, ref) if ref else None


def outline(form: LaunchForm) -> list[dict[str, Any]]:
    """The stages before the one that the form is about, in a few words each."""
    known = dict.fromkeys(("draft", "dataset", "task_set"), "")
    return [{"label": label_of(each.get("algorithm", "")), **known, **each} for each in form.earlier]


def gate_fields(form: LaunchForm) -> list[tuple[BoundField, str]]:
    """The fields of the gate before the stage, each with its label."""
    sides = {True: "at least", False: "at most"}
    return [(form[name], f"{limit.label.capitalize()}, {sides[limit.is_least]}") for name, limit in LIMITS.items()]


def _requests(form: LaunchForm) -> list[StageRequest] | None:
    """The stages as launches, each with its gate; None with everything that is wrong noted in the form."""
    stages = []
    for place, data in enumerate(form.earlier, 1):
        if data.get("algorithm") == PROMPT:
            with _refusals(form):
                stages.append(StageRequest(run=_prompt(form.project, data)))
                continue
            return None
        stage = LaunchForm(form.project, {**data, "earlier": json.dumps(form.earlier[: place - 1])})
        run, gate = stage.request(), stage.gate()
        if run is None or stage.errors:
            problems = "; ".join(f"{name}: {' '.join(map(str, each))}" for name, each in stage.errors.items())
            form.refuse("earlier", f"stage {place}: {problems}")
            return None
        stages.append(StageRequest(run=run, gate=gate))
    gate, run = form.gate(), form.request()
    if form.grid:
        form.refuse("grid", "a stage of a pipeline is a single run; leave the grid empty")
    if run is None or form.errors:
        return None
    return [*stages, StageRequest(run=run, gate=gate)]


def _prompt(project: Project, data: Mapping[str, str]) -> PromptRequest:
    """A new prompt as `after_prompt` wrote it. Raises Refused for what somebody wrote instead."""
    samples, seed = number(data.get("samples", "")), number(data.get("seed", ""))
    try:
        share = float(data["validation_share"])
    except (KeyError, ValueError):
        share = None
    if samples is None or seed is None or share is None:
        raise Refused("the new prompt cannot be read; start again with it", field="earlier")
    return PromptRequest(
        base=find_version(project, data.get("base", "")),
        task_set=find_task_set(project, data.get("task_set", "")),
        draft=find_version(project, data.get("draft", "")),
        settings={"samples": samples, "validation_share": share},
        seed=seed,
    )


@contextmanager
def _refusals(form: LaunchForm) -> Iterator[None]:
    """Go on after a refusal inside, which is shown at its field of this stage or above the form for another."""
    try:
        yield
    except Refused as error:
        own = f"stages.{form.stage}."
        if error.field.startswith(own):
            form.refuse(error.field.removeprefix(own), error.problem)
        else:
            form.refuse("earlier", str(error))


def _as_data(form: LaunchForm, run: LaunchRequest) -> dict[str, str]:
    """The choices of a stage as the form reads them."""
    chosen = {name: form[name].data or "" for name in KEPT}
    names = ("base", "task_set", "dataset", "teacher", "reward", "replay")
    rows = {name: getattr(run, name) for name in names}
    evals = {name: form.cleaned_data.get(name) for name in ("rollouts", "leave_out")}
    data = {
        **chosen,
        **{name: str(row) for name, row in rows.items() if row},
        **{name: str(row.pk) for name, row in evals.items() if row},
        "algorithm": run.algorithm,
        **settings_as_data(run.settings),
    }
    return {name: text for name, text in data.items() if text}


def _shown(form: LaunchForm, earlier: list[dict[str, str]], data: dict[str, str]) -> LaunchForm:
    """A form of the same base and set with these choices; a further stage practises what the first ones showed, unless
    somebody chooses otherwise."""
    usual = {**form.refs, "key": str(form.cleaned_data["key"]), "earlier": json.dumps(earlier) if earlier else ""}
    if earlier and "algorithm" not in data:
        usual["algorithm"] = recipes.offered(fix="rlvr").name
    return LaunchForm(form.project, {**usual, **data})
