"""The form in which texts are compared: what it makes equal, and what it keeps apart."""

from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.text.normal_form import normalise


@given(st.text(min_size=1, max_size=60))
def test_normalising_again_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_digits_signs_and_accents_tell_requests_apart() -> None:
    for one, other in (("at 13", "at 14"), ("-5", "5"), ("résumé", "resume"), ("x|.|o", ".|x|o")):
        assert normalise(one) != normalise(other)
    assert normalise("Caf\u0065\u0301 \u200b\u00a0 now…") == normalise("CAFÉ now")
