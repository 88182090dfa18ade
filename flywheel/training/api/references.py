"""References of a request, found in its project, and the bodies that set up a run.

A body that sets up a run is a union over the algorithms, so that the OpenAPI document describes the settings of each.
"""

import uuid
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from django.http import HttpRequest
from ninja import Field
from pydantic import StrictInt, WithJsonSchema

from flywheel.accounts.access import keyed
from flywheel.agents.models import Version
from flywheel.core import recipes
from flywheel.edge.numbers import number
from flywheel.edge.refusals import Missing, Refused, at_field, one
from flywheel.edge.schemas import Body, RefIn, Schema, made
from flywheel.environments.models import RewardRecipe
from flywheel.environments.versions.reward_recipes import find_reward_recipe
from flywheel.evals.api.references import task_set_of, version_of
from flywheel.evals.models import EvalRun
from flywheel.training.launch import run_control
from flywheel.training.models import Dataset


def eval_of(request: HttpRequest, number: int | None) -> EvalRun | None:
    if number is None:
        return None
    with at_field("rollouts"):
        return one(EvalRun.objects.filter(project=keyed(request).project), pk=number)


def recipe_of(request: HttpRequest, ref: str) -> RewardRecipe | None:
    """The reward recipe that is meant; None for an empty reference."""
    if not ref:
        return None
    with at_field("reward"):
        return find_reward_recipe(keyed(request).project, ref)


def dataset_of(request: HttpRequest, name: str, version: int) -> Dataset:
    rows = Dataset.objects.filter(project=keyed(request).project).select_related("task_set", "created_by")
    return one(rows, name=name, version=version)


def dataset_by_ref(request: HttpRequest, ref: str, field: str = "dataset") -> Dataset | None:
    if not ref:
        return None
    name, at, text = ref.partition("@")
    version = number(text)
    if at and version is None:
        raise Refused(f"{ref[:100]!r} is not of the form name@version", field=field)
    with at_field(field):
        if version is not None:
            return dataset_of(request, name, version)
        rows = Dataset.objects.filter(project=keyed(request).project, name=name).select_related("task_set")
        newest = rows.order_by("-version").first()
        if newest is None:
            raise Missing(f"there is no dataset {name[:100]!r}")
        return newest


class FullTuningOut(Schema):
    mode: Literal["full"]
    """All weights."""


class AdapterTuningOut(Schema):
    mode: Literal["lora", "qlora"]
    """`qlora` has the base in 4 bits."""
    rank: StrictInt = run_control.LORA["rank"]
    """1 to 512."""
    alpha: StrictInt = run_control.LORA["alpha"]
    """1 to 512."""


class FullTuning(FullTuningOut, Body): ...


class AdapterTuning(AdapterTuningOut, Body): ...


Tuning = Annotated[FullTuning | AdapterTuning, Field(discriminator="mode")]
TuningOut = Annotated[FullTuningOut | AdapterTuningOut, Field(discriminator="mode")]


class ChoicesIn(Body):
    """Choices for a run, but for its base."""

    task_set: RefIn
    """`name@version` whose held-out tasks measure the result."""
    algorithm: str
    """`sft`, `dpo`, `grpo`, `dr_grpo`, `dapo`, `gspo`, `cispo`, `rloo`, `kto`, `awr`, `importance_sampling`,
    `ppo`, `distillation` or `reward_model`."""
    dataset: RefIn = ""
    """`name@version`; if empty, it is built."""
    rollouts: int | None = None
    """Id of a finished eval on the set's train split, whose attempts are used to build the dataset."""
    settings: dict[str, Any] = {}
    """Settings of the algorithm; its defaults if omitted."""
    tuning: Tuning | None = None
    """What is trained. If omitted or null: all weights of a model of up to 50 million parameters, LoRA for larger
    ones."""
    seed: int = 1
    """Seed of the run."""
    budget: dict[str, float] = {}
    """Limits: `minutes` of training steps and evaluations, `device_hours` (these of each process), `usd` (paid to LLM
    judges and simulators, and device-hours at the project's price) and `tokens` processed. A run that reaches one
    saves, stops and can be resumed with a greater budget. Empty for none."""
    teacher: RefIn = ""
    """`agent@number` whose probabilities `distillation` learns; it needs weights here and the tokenizer of `base`."""
    reward: RefIn = ""
    """`name@version` of the reward recipe that a reinforced run learns from; if empty, each task's own verifier."""
    replay: RefIn = ""
    """`name@version` of demonstrations to imitate beside the attempts, for algorithms that practise tasks: see
    `replay_rows` and `replay_weight`."""
    environment_weights: dict[str, list[float]] = {}
    """For a mix of environments: the weight of each at the first step and at the last, `{"mail": [1, 0.2], "tables":
    [0, 1]}`, in a line between them. Empty: the rows of the mix take turns."""
    override_reason: str = ""
    """Why you chose another fix than the recommended one; required in that case."""
    leave_out: list[int] = []
    """Numbers of train tasks to leave out of a dataset that is built."""

    def request(self, request: HttpRequest, base: Version, key: uuid.UUID) -> run_control.LaunchRequest:
        """The launch that they are for, with what they name. Raises Refused."""
        return run_control.LaunchRequest(
            key=key,
            base=base,
            algorithm=self.algorithm,
            task_set=task_set_of(request, self.task_set),
            dataset=dataset_by_ref(request, self.dataset),
            replay=dataset_by_ref(request, self.replay, "replay"),
            environment_weights=self.environment_weights,
            rollouts=eval_of(request, self.rollouts),
            settings=self.settings,
            tuning=self.tuning.model_dump() if self.tuning else {},
            seed=self.seed,
            budget=self.budget,
            leave_out=self.leave_out,
            teacher=version_of(request, self.teacher, "teacher") if self.teacher else None,
            reward=recipe_of(request, self.reward),
            override_reason=self.override_reason,
        )


class RunIn(ChoicesIn):
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same run."""
    base: RefIn
    """`agent@number` to train; it must have weights here."""


class SweepIn(RunIn):
    key: uuid.UUID | None = None
    """Your own UUID of the sweep. Repeating a key returns the same runs."""
    grid: dict[str, list[Any]]
    """Values by setting, at most 16 combinations: `{"learning_rate": [0.0001, 0.0003], "seed": [1, 2]}`. Names are
    settings of the algorithm, `trl.` and `lora.` fields, `seed`, and the adapter's `rank` and `alpha`."""


def by_algorithm(base: type[Body], name: str, *others: type[Body]) -> Any:
    """Return `base`, which has an algorithm and settings, as a union over the algorithms: each member,
    `{name}_{algorithm}`, describes the settings of its own. `run_control` checks their values, and says more than a
    schema could. `others` are what else may be asked."""
    members = (*(_of(algorithm, base, name) for algorithm in recipes.ALGORITHMS), *others)
    return Annotated[Union[members], Field(discriminator="algorithm")]  # noqa: UP007


def _of(algorithm: str, base: type[Body], name: str) -> type[Body]:
    described = Annotated[dict[str, Any], WithJsonSchema(recipes.schema(algorithm))]
    about = base.model_fields["settings"].description
    fields: dict[str, Any] = {
        "algorithm": (Literal[algorithm], Field(description=recipes.ALGORITHMS[algorithm].description)),
        "settings": (described, Field(default_factory=dict, description=about)),
    }
    return made(f"{name}_{algorithm}", base, **fields)


if TYPE_CHECKING:
    LaunchIn = RunIn
    TypedSweepIn = SweepIn
else:
    LaunchIn = by_algorithm(RunIn, "Launch")
    TypedSweepIn = by_algorithm(SweepIn, "Sweep")
