"""Measures a reward model by pairs that it has not learnt from: on the way, and at the end with answers that nobody
wants (`core.verifiers.reward_model_rules`)."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from flywheel.core import digests
from flywheel.core.evidence import compared_items, contamination
from flywheel.core.evidence.statistics.estimates import clustered_rate
from flywheel.core.verifiers.reward_model_rules import degenerate_answers
from workers.engines.reward_scorer import RewardScorer
from workers.trainers.attempts.live_engine import undisturbed
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError

PROMPTS_MOST = 64
"""Prompts to which answers are made that nobody wants."""

Row = Mapping[str, Any]


def split(rows: list[dict[str, Any]], share: float, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to learn from, and those of a share of the sources to measure by; none of these is given away by the first.
    Raises TrainingError where nothing is left on a side."""
    sources = sorted({source_of(row) for row in rows}, key=lambda source: digests.digest([seed, source]))
    kept = set(sources[: max(1, round(share * len(sources)))])
    learnt = [row for row in rows if source_of(row) not in kept]
    if not learnt:
        raise TrainingError("data", "all pairs are of one source: some are kept aside to measure the reward model by")
    aside = [row for row in rows if source_of(row) in kept]
    items = [item for row in learnt for item in compared_items.items_of_row(row)]
    known = set(contamination.check(items, map(compared_items.item_of_row, aside)).blocked)
    unknown = [row for row in aside if row["task_id"] not in known]
    if not unknown:
        raise TrainingError(
            "data", f"the {len(aside)} pairs kept aside are among those to learn from too; take another seed"
        )
    return learnt, unknown


def source_of(row: Row) -> str:
    return str(row.get("cluster") or row["task_id"])


class Validation:
    """Pairs that are kept aside, told apart by the model as it learns."""

    def __init__(self, run: Run, model: Any, tokenizer: Any, rows: Sequence[Row], tools: Sequence[Any]) -> None:
        """`tools` of each row, as its prompt tells of them."""
        self.run, self.model = run, model
        self.scorer = RewardScorer(model, tokenizer, run.spec.settings["eval_batch_size"])
        order = sorted(range(len(rows)), key=lambda place: digests.digest(rows[place]["task_id"]))
        chosen = order[: run.spec.validation_limit]
        self.rows, self.tools = [rows[place] for place in chosen], [tools[place] for place in chosen]

    def __call__(self, step: int) -> float | None:
        """Score them, and record the event. The share that is ranked right; None where none could be scored."""
        began = time.monotonic()
        with undisturbed(self.model):
            gaps = [gap for gap in _gaps(self.scorer, self.rows, self.tools) if gap is not None]
        share = fmean([gap > 0 for gap in gaps]) if gaps else None
        self.run.event(
            "validation",
            step=step,
            score=share,
            n=len(gaps),
            unscored=len(self.rows) - len(gaps),
            pair_accuracy=share,
            margin=fmean(gaps) if gaps else None,
            loss=fmean(map(_loss, gaps)) if gaps else None,
            seconds=round(time.monotonic() - began, 3),
        )
        return share


def measure(scorer: RewardScorer, rows: Sequence[Row], tools: Sequence[Any]) -> dict[str, Any]:
    """The facts of a reward model, by pairs that it has not learnt from: `{"reference": the mean raw score,
    "chosen": the median one, "rejected": the median one, "pairs": {"mean", "low", "high", "n", "unscored",
    "sources"}, "degenerate": {kind: {"median", "beaten", "n"}}}`. Raises TrainingError where nothing can be
    scored."""
    right = _raw(scorer, rows, tools, "chosen")
    wrong = _raw(scorer, rows, tools, "rejected")
    scores = [[raw for raw in side if raw is not None] for side in (right, wrong)]
    if not all(scores):
        raise TrainingError("data", "not one of the pairs kept aside fits into the model")
    ranked = [None if gap is None else float(gap > 0) for gap in _differences(right, wrong)]
    found = clustered_rate(ranked, [source_of(row) for row in rows])
    return {
        "reference": fmean([*scores[0], *scores[1]]),
        "chosen": median(scores[0]),
        "rejected": median(scores[1]),
        "pairs": {
            "mean": found.mean,
            "low": found.low,
            "high": found.high,
            "n": found.n,
            "unscored": found.unscored,
            "sources": found.clusters,
        },
        "degenerate": _degenerate(scorer, rows[:PROMPTS_MOST], tools, right),
    }


def _degenerate(
    scorer: RewardScorer, rows: Sequence[Row], tools: Sequence[Any], right: Sequence[float | None]
) -> dict[str, Any]:
    """By kind the median of the answers that nobody wants, and at how many prompts the chosen one beats them."""
    made = [
        (kind, place, [*row["prompt"], {"role": "assistant", "content": text}])
        for place, row in enumerate(rows)
        for kind, text in degenerate_answers(row["prompt"], _text(row["chosen"])).items()
    ]
    raw = _numbers(scorer, [(messages, tools[place]) for _, place, messages in made])
    by_kind: dict[str, list[tuple[float, float]]] = {}
    for (kind, place, _), score in zip(made, raw, strict=True):
        best = right[place]
        if score is not None and best is not None:
            by_kind.setdefault(kind, []).append((score, best))
    return {
        kind: {
            "median": median(score for score, _ in own),
            "beaten": sum(best > score for score, best in own),
            "n": len(own),
        }
        for kind, own in by_kind.items()
    }


def _text(messages: Sequence[Row]) -> str:
    """An answer with its calls, as one text."""
    said = [message for message in messages if message["role"] == "assistant"]
    calls = [json.dumps(call, ensure_ascii=False) for message in said for call in message.get("tool_calls") or ()]
    return "\n".join(filter(None, [*(message["content"] for message in said), *calls]))


def _gaps(scorer: RewardScorer, rows: Sequence[Row], tools: Sequence[Any]) -> list[float | None]:
    return _differences(_raw(scorer, rows, tools, "chosen"), _raw(scorer, rows, tools, "rejected"))


def _differences(right: Sequence[float | None], wrong: Sequence[float | None]) -> list[float | None]:
    pairs = zip(right, wrong, strict=True)
    return [None if one is None or other is None else one - other for one, other in pairs]


def _raw(scorer: RewardScorer, rows: Sequence[Row], tools: Sequence[Any], name: str) -> list[float | None]:
    told = zip(rows, tools, strict=True)
    return _numbers(scorer, [([*row["prompt"], *row[name]], own) for row, own in told])


def _numbers(scorer: RewardScorer, conversations: Sequence[Any]) -> list[float | None]:
    """Raw scores; None of what cannot be scored."""
    return [None if isinstance(found, str) else found for found in scorer.score(conversations)]


def _loss(gap: float) -> float:
    """The pairwise logistic loss, -log(1 / (1 + exp(-gap)))."""
    return max(-gap, 0.0) + math.log1p(math.exp(-abs(gap)))
