"""The training algorithms: each a row with all that holds of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Data = Literal["sft", "pairs", "tasks", "thumbs", "scored"]
"""What an algorithm learns from: corrected answers, preferred and rejected answers, tasks that it tries itself, single
answers, each with a thumb up or down, or attempts that were scored when they were made."""

Fix = Literal["sft", "dpo", "rlvr", "environment_rl"]
"""The steps of the fix ladder that are a training run."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    name: str
    label: str
    trainer: str
    """`python -m workers.trainers.<trainer> RUNDIR` carries it out."""
    data: Data
    fixes: tuple[Fix, ...]
    description: str
    is_grouped: bool = False
    """Whether an attempt is compared with its siblings, so that a group that scores alike teaches nothing."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TRL's config that make the algorithm what it is; no setting overrides them."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Settings of which it wants another default."""
    has_teacher: bool = False
    """Whether another model's probabilities judge its attempts, and not their verdicts."""
    makes_policy: bool = True
    """Whether what it trains acts, as a version of the agent; a reward model only scores."""

    @property
    def practises(self) -> bool:
        """Whether it learns from attempts of its own."""
        return self.data == "tasks"

    @property
    def is_reinforced(self) -> bool:
        """Whether it learns from the verdicts on these."""
        return self.practises and not self.has_teacher


def _grpo(
    name: str,
    label: str,
    description: str,
    *,
    loss: str,
    level: str = "token",
    own: Mapping[str, Any] | None = None,
    **fixed: str,
) -> Algorithm:
    """One of the GRPO family: its kin differ in the loss, in what the importance ratio is of, or in what else of TRL's
    config is `fixed`. RLOO has another baseline too."""
    fixed |= {"loss_type": loss, "importance_sampling_level": level}
    fixes: tuple[Fix, ...] = ("rlvr", "environment_rl")
    return Algorithm(name, label, "grpo", "tasks", fixes, description, is_grouped=True, fixed=fixed, own=own or {})


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm(
            "sft",
            "SFT",
            trainer="sft",
            data="sft",
            fixes=("sft",),
            description="Supervised fine-tuning: imitate corrected answers. The first thing to try when people have "
            "written what should have happened.",
        ),
        Algorithm(
            "dpo",
            "DPO",
            trainer="dpo",
            data="pairs",
            fixes=("dpo",),
            description="Direct preference optimisation: prefer the corrected answer over the failed one, staying "
            "near the start.",
            # At 0.1, after SFT, the reference policy fell from 34.7 to 28.5 % of its held-out tasks; at 0.5 it rose.
            own={"steps": 60, "batch_size": 16, "learning_rate": 1e-4, "beta": 0.5},
        ),
        _grpo(
            "grpo",
            "GRPO",
            "Group-relative policy optimisation: several attempts at each task, each judged by the verifier and "
            "compared with its siblings.",
            loss="grpo",
        ),
        _grpo(
            "dr_grpo",
            "Dr. GRPO",
            "GRPO without its two biases: no division by the group's spread, none by the answer's length.",
            loss="dr_grpo",
            own={"scale_rewards": "none"},
        ),
        _grpo(
            "dapo",
            "DAPO",
            "GRPO with the token-level loss, the wider upper clip, the masking of cut-off answers and the dynamic "
            "sampling of DAPO.",
            loss="dapo",
            own={"epsilon_high": 0.28, "mask_truncated_completions": True, "dynamic_sampling": True},
        ),
        _grpo(
            "gspo",
            "GSPO",
            "Group sequence policy optimisation: one importance ratio for a whole answer; steadier on long answers.",
            loss="grpo",
            level="sequence",
            own={"epsilon": 3e-4, "epsilon_high": 4e-4},
        ),
        _grpo(
            "cispo",
            "CISPO",
            "Clips the importance weight instead of the update, so that rare decisive tokens keep their gradient.",
            loss="cispo",
            own={"epsilon_high": 5.0},
        ),
        _grpo(
            "rloo",
            "RLOO",
            "REINFORCE leave-one-out: each attempt is compared with the mean of the others; few moving parts.",
            loss="dapo",
            own={"beta": 0.05},
            scale_rewards="none",
            multi_objective_aggregation="sum_then_normalize",
        ),
        Algorithm(
            "kto",
            "KTO",
            trainer="kto",
            data="thumbs",
            fixes=(),
            description="Kahneman-Tversky optimisation: make good answers likelier and bad ones less likely, each "
            "judged by itself, staying near the start. For thumbs and labels without corrections.",
            # Ten times that rate took the reference policy, after SFT, from 21.6 to 6.9 % of its held-out tasks: most
            # of its answers were bad, and it unlearnt what was right in them.
            own={"steps": 60, "batch_size": 16, "learning_rate": 1e-5, "beta": 0.1},
        ),
        Algorithm(
            "awr",
            "AWR",
            trainer="sft",
            data="scored",
            fixes=(),
            description="Advantage-weighted regression: imitate recorded attempts, the more the better they scored "
            "than others at the same task. Nothing new is sampled; for attempts that are there already.",
            # Ten times that rate took the reference policy from 25.2 to 24.1 % of its held-out tasks, this one to 28.0.
            own={"learning_rate": 1e-4},
        ),
        _grpo(
            "importance_sampling",
            "Importance sampling",
            "REINFORCE with the group's mean as baseline and one truncated importance weight per token; nothing is "
            "divided by the group's spread.",
            loss="cispo",
            own={"epsilon_high": 2.0},
            scale_rewards="none",
            multi_objective_aggregation="sum_then_normalize",
        ),
        Algorithm(
            "ppo",
            "PPO",
            trainer="grpo",
            data="tasks",
            fixes=("rlvr", "environment_rl"),
            description="Proximal policy optimisation: a value head predicts the reward at each token, and credit goes "
            "to the tokens that changed the prediction. For long episodes.",
            fixed={"loss_type": "dapo", "importance_sampling_level": "token"},
            own={"num_generations": 2, "normalize_advantages": True},
        ),
        Algorithm(
            "distillation",
            "Distillation",
            trainer="grpo",
            data="tasks",
            fixes=(),
            description="On-policy distillation: the policy tries tasks, and a teacher, another version, says how "
            "likely each token would have been for it. The verdicts are shown and not learnt from.",
            fixed={"loss_type": "dapo", "importance_sampling_level": "token"},
            own={"num_generations": 2},
            has_teacher=True,
        ),
        Algorithm(
            "reward_model",
            "Reward model",
            trainer="reward_model",
            data="pairs",
            fixes=(),
            description="Trains no policy but a judge: a model that scores the preferred answer of a pair above the "
            "other. A verifier can then use it as a part, in evals and as a reward.",
            own={"steps": 60, "batch_size": 16, "learning_rate": 1e-4, "validation_share": 0.2},
            makes_policy=False,
        ),
    )
}
"""Every algorithm by its name. Of those with the same data, or the same fix, the first is what a form offers."""
