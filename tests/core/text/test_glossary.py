"""The glossary's definitions are short enough to be read where a term stands."""

import re
from pathlib import Path

import pytest

from flywheel.core.text.glossary import TERMS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", TERMS)
def test_a_definition_is_one_or_two_short_sentences(name: str) -> None:
    means = TERMS[name]
    assert len(means) <= 120
    assert means[0].isupper()
    assert means.endswith(".")
    assert 1 <= means.count(". ") + 1 <= 2


def test_pages_explain_most_of_the_terms_and_no_other() -> None:
    """A term that is in no glossary would fail its page."""
    texts = (path.read_text() for path in (ROOT / "templates").rglob("*.html"))
    explained = {name for text in texts for name in re.findall(r'{% term "([^"]+)"', text)}
    assert explained <= TERMS.keys()
    assert len(explained) >= 25
