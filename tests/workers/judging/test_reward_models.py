"""Many attempts are scored in one pass, a broken reward model leaves them unscored, and one too long has failed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flywheel.core.envs.policy_rollouts import EngineError
from flywheel.core.traces import Message
from flywheel.core.verifiers.reward_model_rules import probability
from workers.engines.context_length import TooLong
from workers.judging.reward_models import RewardModels

PART = {"model": "mail-reward@1", "digest": "d", "least": 0.7}


class Scorer:
    """Scores an answer by its length."""

    def __init__(self) -> None:
        self.passes: list[int] = []
        self.breaks = self.is_closed = False

    def score(self, conversations: Sequence[Any]) -> list[float | str]:
        self.passes.append(len(conversations))
        if self.breaks:
            raise EngineError("the process of the model ended")
        texts = [messages[-1]["content"] for messages, _ in conversations]
        return [TooLong("too long for it") if len(text) > 9 else float(len(text)) for text in texts]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def scorer(tmp_path: Path) -> Scorer:
    (tmp_path / "reward.json").write_text(json.dumps({"reference": 4.0}))
    return Scorer()


def said(text: str) -> list[Message]:
    return [Message("user", "?"), Message("assistant", text)]


def test_attempts_are_scored_in_one_pass_against_the_reference(scorer: Scorer, tmp_path: Path) -> None:
    models = RewardModels({"d": tmp_path}, lambda _: scorer)
    models.recall(PART, [(said(text), []) for text in ("abc", "abcd", "abcdef", "abcdef")])
    low, middle, high = (models(PART, said(text), []) for text in ("abc", "abcd", "abcdef"))
    assert scorer.passes == [3], "once, and the same one once"
    assert (low.score, middle.score) == (probability(3, 4), 0.5)
    assert high.score == 1, "from the least on it passes"
    assert low.reason == "mail-reward@1 scores 3.00: preferred to an average answer with probability 0.269, below 0.7"
    assert models(PART, said("a" * 10), []).score == 0, "what is left out of a mean would make it better"


def test_a_broken_model_leaves_attempts_unscored_and_is_not_tried_at_each(scorer: Scorer, tmp_path: Path) -> None:
    models = RewardModels({"d": tmp_path}, lambda _: scorer)
    scorer.breaks = True
    models.recall(PART, [(said("ab"), [])])
    verdicts = [models(PART, said(text), []) for text in ("ab", "abc")]
    assert {(each.score, each.cause, each.reason) for each in verdicts} == {
        (None, "crashed", "the process of the model ended")
    }
    assert (scorer.passes, scorer.is_closed) == ([1], True)
    scorer.breaks = False
    models.recall(PART, [(said("ab"), [])])
    assert models(PART, said("ab"), []).score == probability(2, 4)
    elsewhere = models({**PART, "digest": "e"}, said("ab"), [])
    assert (elsewhere.score, elsewhere.cause) == (None, "refused")
