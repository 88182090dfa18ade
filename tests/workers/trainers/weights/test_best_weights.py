"""By validation the best weights are kept, the run ends early, and a resumed run chooses the same."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.trainers.cast import NAMES, Make, Start, sft_row, slow, task
from workers.trainers.weights.best_weights import BestWeights

SCORES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, None]), min_size=1, max_size=12)


class Told:
    """A run as its weights are chosen: what was validated stands in its events."""

    def __init__(self, path: Path, **settings: Any) -> None:
        chosen = {"patience": 0, "final_weights": "best", **settings}
        spec = SimpleNamespace(settings=chosen)
        self.run: Any = SimpleNamespace(path=path, work=path / "work", spec=spec, is_first=True)
        self.weights = 0
        (path / "events.jsonl").touch()
        self.best = self.begin(0)

    def begin(self, step: int) -> BestWeights:
        self.best = BestWeights(
            self.run, lambda place: Path(place, "weights").write_text(str(self.weights)), until=step
        )
        return self.best

    def validated(self, step: int, score: float | None, **more: Any) -> None:
        """The weights of a step are its number. `more` is of the event."""
        self.weights = step
        with (self.run.path / "events.jsonl").open("a") as events:
            events.write(json.dumps({"event": "validation", "step": step, "score": score, **more}) + "\n")
        self.best(step, more.get("overall", score))

    @property
    def given(self) -> int | None:
        """The weights that the run gives where they are not the last."""
        step = self.best.kept()
        return None if step is None else int((self.best.path_of(step) / "weights").read_text())


def test_the_first_of_the_best_is_kept_and_given(tmp_path: Path) -> None:
    told = Told(tmp_path)
    for step, score in enumerate([0.9, 0.2, 0.5, None, 0.5, 0.4]):
        told.validated(step, score)
    assert told.best.best == (2, 0.5), "what it was before its first step is no choice"
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step-2"]
    assert (told.best.kept(), told.given) == (2, 2)
    told.best.drop()
    assert not (tmp_path / "best").exists()


def test_the_last_weights_stay_where_they_are_wanted_or_nothing_was_validated(tmp_path: Path) -> None:
    told = Told(tmp_path, final_weights="last", patience=2)
    for step, score in enumerate([0.1, 0.5, 0.4, 0.3]):
        told.validated(step, score)
    assert told.best.is_over, "patience goes by validation all the same"
    assert told.best.kept() is None


def test_patience_is_counted_from_the_best(tmp_path: Path) -> None:
    told = Told(tmp_path, patience=2)
    over = []
    for step, score in enumerate([0.5, 0.1, 0.1, 0.3, 0.2, 0.3]):
        told.validated(step, score)
        over.append(told.best.is_over)
    assert over == [False, False, False, False, False, True]


def test_of_several_environments_the_mean_of_all_decides_after_a_resume_too(tmp_path: Path) -> None:
    told = Told(tmp_path, final_weights="last", patience=1)
    told.validated(2, 0.9, overall=0.2)
    told.validated(4, 0.1, overall=0.3)
    assert told.best.best == (4, 0.3)
    assert told.begin(4).best == (4, 0.3)
    assert not told.best.is_over


def test_the_best_reward_decides_where_the_run_goes_by_it_after_a_resume_too(tmp_path: Path) -> None:
    told = Told(tmp_path, best_metric="reward", final_weights="last", patience=1)
    told.validated(2, 0.9, reward=0.2)
    told.validated(4, 0.1, reward=0.1, overall_reward=0.3)
    told.validated(6, 1.0, reward=None)
    assert told.begin(6).best == (4, 0.3)
    assert not told.best.is_over, "a validation without a reward says nothing"


def test_kept_weights_have_the_score_that_they_had(tmp_path: Path) -> None:
    """A step that comes again may be told another score on a GPU, and a crash of the machine may lose its event."""
    told = Told(tmp_path)
    told.validated(2, 0.8)
    (tmp_path / "events.jsonl").write_text('{"event": "validation", "step": 2, "score": 0.5}\n')
    assert told.begin(2).best == (2, 0.8)
    (tmp_path / "events.jsonl").write_text("")
    assert told.begin(0).best == (2, 0.8)


def test_where_kept_weights_are_lost_the_next_best_is_kept(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.validated(2, 0.8)
    told.best.drop()
    told.begin(2)
    told.validated(4, 0.3)
    assert told.best.kept() == 4


@given(SCORES, st.integers(0, 11), st.integers(1, 3))
def test_a_resumed_run_chooses_as_one_that_was_not_stopped(
    tmp_path_factory: pytest.TempPathFactory, scores: list[float | None], back: int, patience: int
) -> None:
    """It was killed after all of these, and its newest checkpoint is some steps older."""
    whole = Told(tmp_path_factory.mktemp("whole"), patience=patience)
    broken = Told(tmp_path_factory.mktemp("broken"), patience=patience)
    for told in (whole, broken):
        for step, score in enumerate(scores):
            told.validated(step, score)
    until = min(back, len(scores) - 1)
    broken.begin(until)
    for step in range(until + 1, len(scores)):
        broken.validated(step, scores[step])
    assert broken.best.best == whole.best.best
    assert broken.best.is_over == whole.best.is_over
    assert broken.best.kept() == whole.best.kept()
    assert broken.given == whole.given


VALIDATION = [task(name) for name in NAMES[6:8]]


def test_rows_of_validation_are_not_learnt_from_and_the_best_step_is_what_the_run_gives(
    make: Make, start: Start
) -> None:
    settings = {"lr_schedule": "constant", "patience": 2, "learning_rate": 1e-2}
    fields: dict[str, Any] = {"eval_every": 5, "held_out": False, "settings": settings}
    run = make(name="early", steps=300, validation=VALIDATION, train=[sft_row(name) for name in NAMES[:8]], **fields)
    assert start(run).wait() == 0, run.errors()
    began = run.events("training_start")[0]
    assert (began["train_rows"], began["validation_rows"], began["set_aside_rows"]) == (6, 2, 2)
    told = {row["step"]: row for row in run.events("validation")}
    assert set(told[0]) >= {"success", "score", "n", "unscored", "parts", "tokens", "slices", "seconds"}
    best = max((row["score"], -step) for step, row in told.items() if step)
    chosen, last = -best[1], max(told)
    result = run.result
    assert (result["status"], result["chosen"], result["early"]) == ("completed", chosen, True)
    assert (result["step"], last) == (last, chosen + 10)
    assert not (run.path / "best").exists()

    settings = {**settings, "final_weights": "last", "patience": 0}
    alone = make(
        name="alone", steps=chosen, train=[sft_row(name) for name in NAMES[:6]], **fields | {"settings": settings}
    )
    assert start(alone).wait() == 0, alone.errors()
    assert run.result["digest"] == alone.result["digest"], "the weights are those of that step"


@pytest.mark.parametrize("tuning", [{"mode": "full"}, {"mode": "lora", "rank": 4, "alpha": 8}], ids=["full", "lora"])
def test_killed_and_resumed_gives_the_same_weights(tuning: dict[str, Any], make: Make, start: Start) -> None:
    fields: dict[str, Any] = {
        "names": NAMES[:8],
        "steps": 14,
        "tuning": tuning,
        "checkpoint_every": 4,
        "eval_every": 2,
        "held_out": False,
        "validation": VALIDATION,
    }
    whole, broken = make(name="whole", **fields), make(name="broken", **fields)
    other = start(whole)
    trainer = start(broken, hook=slow, given=0.1)
    broken.until(lambda run: len(run.events("step")) >= 7 and len(run.events("checkpoint")) >= 1)
    trainer.signal(signal.SIGKILL)
    assert trainer.wait() == -signal.SIGKILL
    assert start(broken).wait() == 0, broken.errors()
    assert other.wait() == 0, whole.errors()
    assert broken.result["digest"] == whole.result["digest"]
    assert broken.result.get("chosen") == whole.result.get("chosen")
    assert whole.result.get("chosen") is not None


def undropped(_: None) -> None:
    """A hook: what is kept stays, as where the process is killed before its result stands."""

    def drop(self: BestWeights) -> None:
        assert self.best is not None

    BestWeights.drop = drop  # type: ignore[method-assign]


def test_an_early_end_that_was_killed_before_it_was_written_is_the_same_end(make: Make, start: Start) -> None:
    settings = {"patience": 1, "learning_rate": 1e-6}
    run = make(steps=50, eval_every=2, held_out=False, settings=settings, validation=VALIDATION)
    assert start(run, hook=undropped).wait() == 0, run.errors()
    first = run.result
    assert (first["early"], first["step"]) == (True, 4)
    (run.path / "result.json").unlink()
    assert start(run).wait() == 0, run.errors()
    again = run.result
    assert [again[name] for name in ("step", "early", "status")] == [4, True, "completed"]


def test_attempts_learn_from_none_of_the_validation_tasks(make: Make, start: Start, trained: Path) -> None:
    rows = [task(name) for name in NAMES[:4]]
    run = make("grpo", on=trained, steps=2, train=rows, validation=rows[3:], held_out=False, eval_every=1)
    assert start(run).wait() == 0, run.errors()
    assert run.events("training_start")[0]["train_rows"] == 3
    assert [row["step"] for row in run.events("validation")] == [0, 1, 2]


def test_nothing_left_to_learn_is_refused(make: Make, start: Start) -> None:
    run = make(steps=2, names=NAMES[:2], validation=[task(name) for name in NAMES[:2]], held_out=False)
    assert start(run).wait() == 1
    assert run.result["kind"] == "data"
    assert "validation_share" in run.result["message"]
