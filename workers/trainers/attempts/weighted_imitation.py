"""Advantage-weighted regression (https://arxiv.org/abs/1910.00177) over TRL's SFTTrainer: recorded attempts, imitated
the more the better they scored than their siblings.

An attempt weighs exp(advantage / scale), its advantage being its score less the mean of its group. Where the tokens'
log-probabilities were recorded, each counts by its importance ratio, truncated, since the policy in training is no
longer the one that sampled it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from trl.trainer.sft_trainer import SFTTrainer

from workers.trainers.attempts import trl_seams
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.weights.trained_policy import ends_of

Row = Mapping[str, Any]
UNREAD = -100
"""TRL's label of a token that is not learnt."""
ALIKE = 1e-6
"""Advantages no further from 0 tell nothing apart."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """The settings of a recipe that are about weights."""

    advantage_scale: float
    max_weight: float
    max_ratio: float

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Weighing":
        return cls(**{name: settings[name] for name in cls.__slots__})


class WeightedTrainer(SFTTrainer):
    """SFTTrainer whose tokens weigh as the attempts of their `rows` do, which its dataset names by their place."""

    def __init__(
        self, *args: Any, about: Weighing, rows: Sequence[Row], warn: Callable[[str], None], **kwargs: Any
    ) -> None:
        """Raises TrainingError of kind data for rows that all weigh the same, bad_spec where rows are packed."""
        if kwargs["args"].packing or kwargs["args"].padding_free:
            raise TrainingError("bad_spec", "settings.trl.packing, trl.padding_free: AWR weighs each row by itself")
        self.about, self.weights = about, weights(rows, about)
        super().__init__(*args, **kwargs)
        self.recorded = self._recorded(rows, warn) if about.max_ratio else {}
        collate = self.data_collator
        self.data_collator = lambda batch: self._weighed(collate(batch), batch)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        weighing, recorded = inputs.pop("weights"), inputs.pop("recorded")
        with trl_seams.scored_tokens(model) as found:
            super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)  # type: ignore[no-untyped-call]
        (log_probs,) = found
        ratios = torch.where(recorded.isnan(), 1.0, (log_probs.detach() - recorded).exp())
        known = ~recorded.isnan()
        if self.recorded:
            trl_seams.measured(self, "recorded", (known.sum() / (inputs["labels"] != UNREAD).sum().clamp(min=1)).item())
        if known.any():
            over = (ratios[known] > self.about.max_ratio).float().mean().item()
            trl_seams.measured(self, "cispo_clip_ratio", over)
        losses = -weighing[:, None] * ratios.clamp(max=self.about.max_ratio or 1.0) * log_probs
        tokens = (inputs["labels"] != UNREAD).sum() if num_items_in_batch is None else num_items_in_batch
        return losses.sum() / torch.as_tensor(tokens).clamp(min=1)

    def _weighed(self, batch: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
        """The batch with `weights` (B), and `recorded` (B, T - 1), nan where no log-probability is known."""
        recorded = torch.full_like(batch["labels"][:, 1:], float("nan"), dtype=torch.float32)
        for at, row in enumerate(rows):
            if (own := self.recorded.get(row["row"])) is not None:
                (places,) = (batch["labels"][at, 1:] != UNREAD).nonzero(as_tuple=True)
                count = min(len(own), len(places))
                recorded[at, places[:count]] = own[:count]
        return batch | {"weights": torch.tensor([self.weights[row["row"]] for row in rows]), "recorded": recorded}

    def _recorded(self, rows: Sequence[Row], warn: Callable[[str], None]) -> dict[int, Tensor]:
        """Log-probabilities by the place of their row, where they are as many as the tokens that the policy wrote: what
        a template adds behind the end of an answer nobody sampled, and some servers do not tell of the end. Where the
        tokens themselves were recorded they must be the same."""
        ends = set(ends_of(self.model, self.processing_class))
        prepared: Any = self.train_dataset
        limit: int = self.args.max_length  # type: ignore[attr-defined]
        found, strange = {}, 0
        for row in prepared:
            if not (given := rows[row["row"]].get("logprobs")):
                continue
            sampled: Sequence[int] = rows[row["row"]].get("token_ids", ())
            learnt = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != UNREAD]
            last = max((at for at, token in enumerate(learnt) if token in ends), default=None)
            is_cut = len(row["input_ids"]) >= limit
            own = len(learnt) if last is None else last + 1
            is_same = all(ours == theirs for ours, theirs in zip(learnt, sampled, strict=False))
            if is_same and (len(given) in (own, own - 1) or (is_cut and len(given) >= own)):
                found[row["row"]] = torch.tensor(given)
            else:
                strange += 1
        if strange:
            warn(
                f"{strange} of {len(prepared)} rows have log-probabilities of other tokens than their answer's; they "
                "are learnt without importance ratios"
            )
        return found


def weights(rows: Sequence[Row], about: Weighing) -> list[float]:
    """The weight of each row, 1 in the mean: that of the attempt that it is of.

    An attempt is compared with the mean score of its group; one that is alone in it with that of all attempts. Raises
    TrainingError of kind data where no attempt is better than another.
    """
    scores: dict[str, dict[str, float]] = {}
    for row in rows:
        scores.setdefault(row["group"], {})[row["attempt"]] = row["score"]
    overall = fmean(score for group in scores.values() for score in group.values())
    usual = {name: fmean(group.values()) if len(group) > 1 else overall for name, group in scores.items()}
    advantages = [row["score"] - usual[row["group"]] for row in rows]
    if max(map(abs, advantages)) <= ALIKE:
        raise TrainingError("data", "no attempt scores better than those that it is compared with: nothing to learn")
    most = math.log(about.max_weight)
    found = [math.exp(min(advantage / about.advantage_scale, most)) for advantage in advantages]
    mean = fmean(found)
    return [weight / mean for weight in found]
