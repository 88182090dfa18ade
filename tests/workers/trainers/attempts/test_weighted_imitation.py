"""AWR beside a slow reference: the same rows, the same two steps, loss and gradients; and what a row weighs."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.trainers.cast import NAMES, Make, Start, owned, pair_row, scored_row
from tests.workers.trainers.reused_attempts import Watched
from workers.trainers.attempts.weighted_imitation import Weighing, weights
from workers.trainers.run.run_failures import TrainingError

ABOUT = Weighing(advantage_scale=0.5, max_weight=3.0, max_ratio=1.2)


def row(score: float, group: str = "g", attempt: str = "", **fields: Any) -> dict[str, Any]:
    return {"score": score, "group": group, "attempt": attempt or f"{group} {score}", **fields}


def test_an_attempt_weighs_by_its_advantage_over_its_group() -> None:
    found = weights([row(1.0), row(0.5), row(0.0), row(0.2, "h"), row(-0.8, "h")], ABOUT)
    wanted = [math.exp(1), 1, math.exp(-1), math.exp(1), math.exp(-1)]
    assert found == pytest.approx([each * 5 / sum(wanted) for each in wanted])
    assert sum(found) == pytest.approx(5), "1 in the mean"


def test_no_attempt_weighs_more_than_the_most_and_each_counts_once_in_its_groups_mean() -> None:
    found = weights([row(1.0, attempt="a"), row(1.0, attempt="a"), row(1.0, attempt="a"), row(-3.0)], ABOUT)
    assert found[0] / found[3] == pytest.approx(3.0 / math.exp(-4)), "two attempts, whose mean is -1"


def test_an_attempt_that_is_alone_is_compared_with_all() -> None:
    found = weights([row(1.0, "a"), row(0.0, "b"), row(0.5, "c")], ABOUT)
    assert [each / found[2] for each in found] == pytest.approx([math.exp(1), math.exp(-1), 1.0])


def test_attempts_that_all_score_alike_teach_nothing() -> None:
    with pytest.raises(TrainingError, match="no attempt scores better"):
        weights([row(1.0), row(1.0, attempt="b"), row(0.2, "h"), row(0.2, "h", "b")], ABOUT)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_it_learns_as_the_reference_does(make: Make, trained: Path) -> None:
    from workers.trainers import sft
    from workers.trainers.run import run_spec
    from workers.trainers.weights import trained_policy

    rows = [scored_row(name) for name in NAMES[:4]]
    rows[0]["score"] = 0.4
    settings = {
        "batch_size": 4, "micro_batch_size": 2, "learning_rate": 3e-3, "max_grad_norm": 99, "lr_schedule": "constant",
        "advantage_scale": 0.5, "max_weight": 1.5, "max_ratio": 1.1,
    }  # fmt: skip
    run = owned(make("awr", on=trained, train=rows, held_out=False, steps=2, settings=settings))
    run.warn = lambda text: run.events.append(text)
    env, data = run_spec.opened(run.spec)
    loaded = trained_policy.load(run)
    before = copy.deepcopy(loaded.model)
    said = [_tokens(loaded.tokenizer, each) for each in rows]
    # What was sampled by another policy: of two rows, one of which leaves out the end and one is of another length.
    noise = torch.Generator().manual_seed(3)
    recorded: list[torch.Tensor | None] = [None] * 4
    for place, less in ((0, 0), (1, 1), (2, 5)):
        own = _logps(before, said[place]).detach()
        given = (own + 0.3 * torch.randn(len(own), generator=noise)).clamp(max=0)[: len(own) - less]
        data.train[place]["logprobs"] = given.tolist()
        recorded[place] = None if less == 5 else given
    # The tokens themselves, where they were recorded, must be the answer's.
    data.train[0]["token_ids"] = said[0][0][0, said[0][1] :].tolist()
    data.train[3] |= {"logprobs": [-1.0] * len(_logps(before, said[3])), "token_ids": [5, 6]}
    trainer = sft.build(run, loaded, env, data)
    watched = Watched(before)
    trainer.add_callback(watched)
    trainer.train()

    assert run.events == [
        "2 of 4 rows have log-probabilities of other tokens than their answer's; they are learnt without importance "
        "ratios"
    ]
    after = watched.models[1]
    scores = [each["score"] for each in rows]
    advantages = [score - sum(scores) / 4 for score in scores]
    raw = [min(math.exp(advantage / 0.5), 1.5) for advantage in advantages]
    assert max(raw) == 1.5, "the clip does something"
    total, tokens, cut = torch.zeros(()), 0, 0
    for place, each in enumerate(said):
        log_probs = _logps(after, each)
        ratios = torch.ones(len(log_probs))
        if (known := recorded[place]) is not None:
            free = (log_probs.detach()[: len(known)] - known).exp()
            ratios[: len(known)] = free.clamp(max=1.1)
            cut += int((free > 1.1).sum())
        total = total - raw[place] * 4 / sum(raw) * (ratios * log_probs).sum()
        tokens += len(log_probs)
    assert cut > 0, "the truncation does something"
    loss = total / tokens
    after.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = {name: it.grad for name, it in after.named_parameters() if it.grad is not None}
    assert wanted.keys() == watched.gradients.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(watched.gradients[name], gradient, rtol=1e-3, atol=1e-5)
    kept = sum(len(each) for each in recorded if each is not None)
    assert trainer.state.log_history[1]["recorded"] == pytest.approx(kept / tokens, abs=0.05)
    assert trainer.state.log_history[1]["loss"] == pytest.approx(loss.item(), abs=1e-5)


def test_the_better_of_two_attempts_becomes_likelier_than_the_worse(make: Make, start: Start, trained: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = []
    for name in NAMES[:4]:
        pair = pair_row(name)
        for said, score in (("chosen", 0.0), ("rejected", 1.0)):  # what it knows to be right is called wrong here
            about = {"score": score, "group": name, "attempt": f"{name} {said}"}
            rows.append({"task_id": pair["task_id"], "prompt": pair["prompt"], "completion": pair[said], **about})
    run = make("awr", on=trained, train=rows, steps=60, settings={"batch_size": 8}, held_out=False)
    assert start(run).wait() == 0, run.errors()
    tokenizer = AutoTokenizer.from_pretrained(trained)
    gaps = []
    for place in (trained, run.path / "final"):
        model = AutoModelForCausalLM.from_pretrained(place)
        worse, better = (_logps(model, _tokens(tokenizer, each)).sum().item() for each in rows[:2])
        gaps.append(better - worse)
    assert gaps[0] < 0 < gaps[1]


def test_rows_that_are_packed_together_are_refused(make: Make, start: Start) -> None:
    run = make("awr", settings={"trl.packing": True}, held_out=False)
    assert start(run).wait() == 1
    assert (run.result["kind"], run.result["message"]) == (
        "bad_spec",
        "settings.trl.packing, trl.padding_free: AWR weighs each row by itself",
    )


def _tokens(tokenizer: Any, row: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """The ids (1, L) of a row, and where its answer begins."""
    prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)["input_ids"]
    whole = tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], return_dict=True)["input_ids"]
    return torch.tensor([whole]), len(prompt)


def _logps(model: Any, said: tuple[torch.Tensor, int]) -> torch.Tensor:
    ids, begin = said
    chosen = torch.log_softmax(model(ids).logits[0, begin - 1 : -1], -1)
    return chosen.gather(1, ids[0, begin:, None])[:, 0]
