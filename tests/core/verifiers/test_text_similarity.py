"""How alike two texts are: figures worked out by hand, and the bounds that every measure keeps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.verifiers.text_similarity import METRICS, similarity


@pytest.mark.parametrize(
    ("metric", "text", "wanted", "figure"),
    [
        ("fuzzy_match", "kitten", "sitting", 8 / 13),
        ("rouge_1", "the cat sat", "The cat.", 0.8),
        ("rouge_2", "the cat sat", "the cat", 2 / 3),
        ("rouge_3", "the cat sat", "the cat", 0.0),
        ("rouge_l", "on the mat the cat sat", "the cat sat on the mat", 0.5),
        ("gleu", "the cat", "the cat sat", 0.5),
        ("bleu", "the cat sat on the mat", "the cat is on the mat", (5 / 6 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25),
        ("meteor", "the cat sat on the mat", "the cat sat on the mat", 0.9977),
        ("meteor", "the cat was sat on the mat", "the cat sat on the mat", 0.9654),
        ("meteor", "a dog", "the cat", 0.0),
    ],
)
def test_figures_are_as_the_literature_defines_them(metric: str, text: str, wanted: str, figure: float) -> None:
    assert similarity(metric, text, wanted) == pytest.approx(figure, abs=5e-5)


@settings(max_examples=60)
@given(metric=st.sampled_from(METRICS), text=st.text("ab c", max_size=30), wanted=st.text("ab c", max_size=30))
def test_a_figure_is_a_share(metric: str, text: str, wanted: str) -> None:
    assert 0.0 <= similarity(metric, text, wanted) <= 1.0 + 1e-9


def test_the_same_long_text_is_the_same() -> None:
    long = "one two three four five " * 5_000
    for metric in ("fuzzy_match", "bleu", "gleu", "rouge_5", "rouge_l"):
        assert similarity(metric, long, long) == pytest.approx(1.0)
    assert similarity("bleu", "", "") == 1.0
    assert similarity("bleu", "", "x") == 0.0


@pytest.mark.parametrize("metric", [each for each in METRICS if each != "fuzzy_match"])
def test_marks_are_no_words_and_only_like_themselves(metric: str) -> None:
    pairs = [("", "?!"), ("…", "?!"), ("?!", "?!"), ("", "x"), ("?", "x")]
    assert [similarity(metric, *pair) for pair in pairs] == [0.0, 0.0, 1.0, 0.0, 0.0]
