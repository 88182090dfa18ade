"""The glossary's definitions are short enough to be read where a term stands."""

import pytest

from flywheel.core.text.glossary import TERMS


@pytest.mark.parametrize("name", TERMS)
def test_a_definition_is_one_or_two_short_sentences(name: str) -> None:
    means = TERMS[name]
    assert len(means) <= 120
    assert means[0].isupper()
    assert means.endswith(".")
    assert 1 <= means.count(". ") + 1 <= 2
