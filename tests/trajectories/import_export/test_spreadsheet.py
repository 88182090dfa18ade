"""CSV: one row a trajectory, read back by Python's own reader; nothing in it is a formula, and numbers are numbers."""

import csv
import io
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flywheel.accounts.models import AuditEntry, User
from flywheel.trajectories.import_export.spreadsheet import COLUMNS, CUT, LONGEST, head, inert, record
from tests.conftest import Build, Cast
from tests.hostile import FORMULAS, PAYLOADS

SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]
STARTS = st.text(st.sampled_from(" \t\r\n\u00a0\u3000\ufeff\u200b\u202e\x07'\"“”«`"), max_size=4)
SIGNS = st.sampled_from("=+-@＝＋－＠﹦﹢﹣﹫⁼⁺⁻₌−")


def rows(content: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))


def runs(cell: str) -> bool:
    """Whether a spreadsheet might take the cell for a formula: another way of looking than the code's own."""
    if re.fullmatch(r"-?\d+(\.\d+)?", cell, re.ASCII):
        return False
    if cell[:1] in tuple("\t\r\n"):
        return True
    folded = [unicodedata.normalize("NFKC", sign) for sign in cell if sign.isprintable() and not sign.isspace()]
    rest = "".join(folded).lstrip('"“”„‟«»‹›`´‘’‚‛')
    return rest[:1] in tuple("=+-@−")


@pytest.mark.parametrize("payload", FORMULAS)
def test_what_begins_like_a_formula_is_text(payload: str) -> None:
    assert not runs(rows(record([payload]))[0][0])
    assert rows(record([payload]))[0][0] in (payload, f"'{payload}")


@settings(max_examples=200)
@given(st.builds(lambda *parts: "".join(parts), STARTS, SIGNS, st.text(max_size=20)))
@example("=1+1")
@example("-1-1")
def test_however_a_formula_is_hidden_it_is_text(cell: str) -> None:
    [[read]] = rows(record([cell]))
    assert not runs(read)
    kept = re.sub("[\0\ud800-\udfff]", "\ufffd", cell)
    assert read == f"'{kept}" or re.fullmatch(r"-\d+(\.\d+)?", kept, re.ASCII)


@settings(max_examples=200)
@given(st.lists(st.one_of(st.text(), st.sampled_from(PAYLOADS), st.integers(), st.floats(allow_nan=False)), min_size=1))
def test_a_record_is_read_back_as_it_was(values: list[Any]) -> None:
    [read] = rows(record(values))
    assert len(read) == len(values)
    for was, cell in zip(values, read, strict=True):
        if isinstance(was, str):
            assert not runs(cell)
            kept = re.sub("[\0\ud800-\udfff]", "\ufffd", was)
            assert cell in (kept, f"'{kept}") or len(was) > LONGEST
        else:
            assert type(was)(cell) == was, "a number, without an apostrophe or quotes"


def test_ordinary_text_and_numbers_stay_as_they_are() -> None:
    for text in ("Meet Bako", "a = b", "1-2", "-5", "-0.25", "", "—", "(+1)", "user@example.com", "日本＝"):
        assert inert(text) == text
    assert record([-1.5, 3, None, "x"]) == b'-1.5,3,"","x"\r\n'


def test_a_very_long_cell_is_cut_and_says_so() -> None:
    assert inert("x" * (LONGEST + 1)) == "x" * LONGEST + CUT


def test_the_page_and_the_api_give_a_table(
    cast: Cast, build: Build, sign_in: SignIn, key: Keys, client: Client
) -> None:
    version = build.version()
    build.trajectory(
        '=HYPERLINK("//evil.example/")\nand "more"',
        answer="-1+cmd|' /C calc'!A0",
        version=version,
        agent=version.agent,
        outcome="failed",
        cost_usd=0.01,
        tool_names=["@SUM(1)", "email.send"],
        tags=["＝1+1"],
    )
    build.trajectory("plain", cost_usd=None)
    answers = [
        sign_in(cast.viewer).get("/p/acme/trajectories/export/", {"format": "csv"}),
        client.get("/api/v1/trajectories/export", {"format": "csv"}, headers=key("read")),
    ]
    for answer in answers:
        assert answer["Content-Type"] == "text/csv; charset=utf-8"
        assert re.search(r'filename="acme-\d{8}-\d{4}\.csv"', answer["Content-Disposition"])
        head, plain, hostile = rows(b"".join(answer))
        assert head == list(COLUMNS)
        found = dict(zip(head, hostile, strict=True))
        assert found["request"] == '\'=HYPERLINK("//evil.example/")\nand "more"'
        assert found["answer"] == "'-1+cmd|' /C calc'!A0"
        assert (found["tools"], found["tags"]) == ("'@SUM(1), email.send", "'＝1+1")
        assert (found["version"], found["cost_usd"], found["latency_ms"]) == (str(version), "0.01", "1000.0")
        assert dict(zip(head, plain, strict=True))["cost_usd"] == "", "what is not known is empty"
    assert AuditEntry.objects.filter(action="trajectories.export", reason="").count() == 2


def test_the_head_says_that_it_is_utf_8() -> None:
    assert head().startswith(b'\xef\xbb\xbf"trace_id",')
