"""KTO learns from single answers, each with a thumb up or down."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flywheel.core import recipes
from flywheel.core.traces.tooling import call_text
from tests.workers.trainers.cast import NAMES, Make, Start, pair_row
from workers.reference import story
from workers.reference.build import POLICY
from workers.trainers.kto import ordered


def judged(name: str, *, is_good: bool) -> dict[str, Any]:
    row = pair_row(name)
    said = row["chosen" if is_good else "rejected"]
    return {"task_id": row["task_id"], "prompt": row["prompt"], "completion": said, "label": is_good}


@pytest.mark.parametrize("tuning", [{"mode": "full"}, {"mode": "lora", "rank": 4, "alpha": 8}], ids=["full", "lora"])
def test_good_answers_become_likelier_than_bad_ones(
    tuning: dict[str, Any], make: Make, start: Start, trained: Path
) -> None:
    good, bad = NAMES[:6], NAMES[6:8]
    rows = [judged(name, is_good=True) for name in good] + [judged(name, is_good=False) for name in bad]
    settings = {"batch_size": 8, "learning_rate": 3e-3 if tuning["mode"] == "lora" else 3e-4}
    run = make("kto", on=trained, train=rows, steps=12, settings=settings, tuning=tuning, held_out=False)
    assert start(run).wait() == 0, run.errors()
    first, last = run.metrics()[1], run.metrics()[12]
    assert first["margin"] == pytest.approx(0, abs=1e-5), "it is compared with where it began"
    assert last["margin"] > 0.1
    assert last["chosen_logp"] - last["rejected_logp"] > first["chosen_logp"] - first["rejected_logp"] + 1
    assert last["loss"] < first["loss"] == pytest.approx(0.5, abs=1e-4), "both kinds weigh the same in all"


def test_the_reference_policy_learns_from_thumbs_at_its_defaults(make: Make, start: Start) -> None:
    rows = []
    for request in story.sessions(8, seed=1)[:8]:  # one batch, the same at each step
        prompt = [{"role": "system", "content": story.SYSTEM_PROMPT}, {"role": "user", "content": request.prompt}]
        for said, label in ((request.answer, True), (call_text("reminders.set", {"about": request.wording}), False)):
            completion = [{"role": "assistant", "content": said}]
            rows.append({"task_id": request.id, "prompt": prompt, "completion": completion, "label": label})
    settings = {name: recipes.defaults("kto")[name] for name in ("batch_size", "learning_rate", "beta")}
    run = make("kto", on=POLICY, train=rows, steps=12, settings=settings, held_out=False)
    assert start(run).wait() == 0, run.errors()
    gaps = [run.metrics()[step]["chosen_logp"] - run.metrics()[step]["rejected_logp"] for step in (1, 12)]
    assert gaps[1] > gaps[0] + 1
    assert run.metrics()[12]["margin"] > 0


@pytest.mark.parametrize(("is_good", "missing"), [(True, "bad"), (False, "good")])
def test_one_kind_alone_is_refused(is_good: bool, missing: str, make: Make, start: Start) -> None:
    run = make("kto", train=[judged(name, is_good=is_good) for name in NAMES[:4]], held_out=False)
    assert start(run).wait() == 1
    assert (run.result["kind"], run.result["message"]) == (
        "data",
        f"no answer is called {missing}: KTO needs good and bad ones; add {missing} ones",
    )


def test_every_batch_has_both_kinds_and_is_full() -> None:
    good = [{"row": number, "label": True} for number in range(9)]
    bad = [{"row": number, "label": False} for number in range(9, 12)]
    rows = ordered(good, bad, 4, seed=1)
    batches = [[row["label"] for row in rows[at : at + 4]] for at in range(0, len(rows), 4)]
    assert [sum(labels) for labels in batches] == [3, 3, 3]
    assert rows == ordered(good, bad, 4, seed=1) != ordered(good, bad, 4, seed=2)
    longer = ordered(good, bad, 5, seed=1)
    assert (len(longer), longer[12:]) == (15, longer[:3])
    assert set(Counter(row["row"] for row in longer).values()) == {1, 2}
    assert len(ordered(good[:1], bad[:1], 16, seed=1)) == 16


def test_prompts_that_are_too_long_are_counted_once(make: Make, start: Start) -> None:
    long = judged("Ada", is_good=True)
    long["prompt"] = [{"role": "user", "content": "remind Ada " * 300}]
    rows = [long, *(judged(name, is_good=name < "D") for name in NAMES[1:6])]
    run = make("kto", train=rows, steps=1, settings={"batch_size": 4}, held_out=False)
    assert start(run).wait() == 0, run.errors()
    (warning,) = run.events("warning")
    assert warning["message"].startswith("1 of 6 rows are left out: their prompt alone reaches ")
