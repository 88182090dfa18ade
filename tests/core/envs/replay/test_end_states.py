"""What is wanted of the state that an attempt leaves behind."""

from typing import Any

import pytest

from flywheel.core.envs.replay import end_states, wanted_items
from flywheel.core.envs.replay.end_states import EndState
from flywheel.core.envs.replay.wanted_items import Attempt
from flywheel.core.traces import Message
from flywheel.core.verifiers import Verdict, VerifierError

BEFORE = {"orders": {"1": {"status": "open"}, "2": {"status": "open"}}, "log": []}
CANCELLED = {"orders": {"1": {"status": "cancelled"}, "2": {"status": "open"}}, "log": ["1"]}


def judged(items: list[dict[str, Any]], after: Any, text: str = "Done.", rows: Any = None) -> Verdict:
    attempt = Attempt((), Message("assistant", text), ("Cancel it",), [], {}, True, EndState(BEFORE, after, rows or {}))
    return wanted_items.verdict(wanted_items.check({"wanted": items}, has_state=True), attempt, [])


def test_the_share_of_paths_that_are_as_wanted_counts() -> None:
    item = {"type": "state", "paths": {"/orders/1/status": "cancelled", "/orders/2/status": "shipped"}}
    assert judged([item], CANCELLED).score == 0.5
    assert '/orders/2/status is "open", wanted "shipped"' in judged([item], CANCELLED).reason
    assert judged([item], BEFORE).score == 0.0


def test_what_is_gone_must_be_gone() -> None:
    item = {"type": "state", "gone": ["/orders/2"]}
    assert judged([item], {"orders": {"1": {}}}).score == 1.0
    assert judged([item], BEFORE).reason == "/orders/2 is still there"


def test_a_side_effect_makes_the_whole_score_0_where_all_else_has_to_stay() -> None:
    item = {"type": "state", "paths": {"/orders/1/status": "cancelled"}, "rest": "same"}
    found = judged([item], CANCELLED)
    assert (found.score, found.parts["forbidden"]) == (0.0, 1.0)
    assert found.reason == 'changed what nobody asked for: /log/0 is "1"'
    assert judged([{**item, "rest": "any"}], CANCELLED).score == 1.0


SHOP = {"orders": {"1": {"status": "open", "coupon": "X"}, "2": {"status": "open"}}, "log": []}


@pytest.mark.parametrize(
    ("wanted", "after", "effect"),
    [
        ({"gone": ["/orders/1/coupon"]}, {"orders": {"2": {"status": "open"}}, "log": []}, "/orders/1 is gone"),
        ({"gone": ["/orders/1/coupon"]}, {"log": []}, "/orders is gone"),
        ({"gone": ["/orders/1/coupon"]}, {**SHOP, "orders": {**SHOP["orders"], "1": 0}}, "/orders/1 is 0"),  # type: ignore[dict-item]
        ({"gone": ["/orders/1/coupon"]}, [], " is []"),
        ({"gone": ["/orders/1/coupon", "/orders/1"]}, {"orders": {"2": {"status": "open"}}, "log": []}, ""),
        ({"gone": ["/orders"]}, {"log": []}, ""),
        ({"paths": {"/users/7/name": "Ann"}}, {**SHOP, "users": {"7": {"name": "Ann"}}}, ""),
        ({"paths": {"/log/0/id": 1}}, {**SHOP, "log": [{"id": 1}]}, ""),
        ({"paths": {"/log/0/id": 1}}, {**SHOP, "log": [{"id": 1}, {"id": 2}]}, '/log/1 is {"id":2}'),
    ],
)
def test_what_holds_a_wanted_path_may_be_made_but_not_taken_away(wanted: Any, after: Any, effect: str) -> None:
    item = {"type": "state", **wanted, "rest": "same"}
    assert end_states.side_effect(item, EndState(SHOP, after)) == effect
    if not effect:
        assert end_states.judge(item, EndState(SHOP, after)).score == 1.0


def test_a_side_effect_behind_many_wanted_changes_is_seen() -> None:
    before = {f"k{place:03}": 0 for place in range(250)} | {"z": 1}
    after = {f"k{place:03}": 1 for place in range(250)}
    item = {"type": "state", "paths": {f"/{key}": 1 for key in after}, "rest": "same"}
    assert end_states.side_effect(item, EndState(before, after)) == "/z is gone"


def test_that_nothing_changes_is_no_share_of_the_score_beside_words() -> None:
    items = [{"type": "state", "rest": "same"}, {"type": "words", "text": "Order 1 is open."}]
    assert judged(items, BEFORE, "Order 1 is open.").score == 1.0
    assert judged(items, BEFORE, "").score == 0.0
    assert judged(items, CANCELLED, "Order 1 is open.").score == 0.0


def test_a_query_is_compared_with_its_rows() -> None:
    item = {"type": "state", "query": "SELECT 1", "rows": [[1]]}
    assert judged([item], BEFORE, rows={"SELECT 1": {"rows": [[1.0]]}}).score == 1.0
    assert judged([item], BEFORE, rows={"SELECT 1": {"rows": []}}).reason == "the query finds [], wanted [[1]]"
    assert "no such table" in judged([item], BEFORE, rows={"SELECT 1": {"error": "no such table"}}).reason


def test_true_is_not_1_and_keys_with_slashes_have_a_path() -> None:
    changes = list(end_states.changes({"a/b": 1, "c": [1, 2]}, {"a/b": True, "c": [1]}))
    assert [(each.path, each.is_gone) for each in changes] == [("/a~1b", False), ("/c/1", True)]
    assert end_states.at({"a/b": {"~": 3}}, "/a~1b/~0") == 3
    assert end_states.at({"a": [1]}, "/a/2") is end_states.MISSING


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"paths": []}, r"wanted.0.paths: expected \{path: value\}"),
        ({"paths": {"orders.1": 2}}, "'orders.1' is not of the form /orders/1001/status"),
        ({"gone": "/a"}, "wanted.0.gone: expected a list of paths"),
        ({"rest": "some"}, "wanted.0.rest: expected one of any, same"),
        ({"query": "SELECT 1"}, "wanted.0.rows: expected the rows that the query should find"),
        ({"query": " ", "rows": []}, "wanted.0.query: expected a query in SQL"),
        ({}, "wanted.0.paths: no condition on the state"),
        ({"path": {}}, "wanted.0.path: there is no such setting"),
    ],
)
def test_an_item_that_cannot_be_judged_is_refused(item: dict[str, Any], problem: str) -> None:
    with pytest.raises(VerifierError, match=problem):
        wanted_items.check({"wanted": [{"type": "state", **item}]}, has_state=True)


def test_an_environment_without_a_state_takes_none() -> None:
    with pytest.raises(VerifierError, match=r"wanted\.0\.type: this environment keeps no state"):
        wanted_items.check({"wanted": [{"type": "state", "rest": "same"}]})


def test_a_state_is_shown_as_tables() -> None:
    state = {"orders": {"1": {"item": "lamp"}}, "log": [{"at": 1}], "open": True, "none": []}
    tables = {table.name: (table.columns, table.rows) for table in end_states.tables(state)}
    assert tables["orders"] == (("", "item"), {"1": ("1", "lamp")})
    assert tables["log"] == (("", "at"), {"0": ("0", "1")})
    assert tables["values"] == (("", "value"), {"open": ("open", "true")})
    assert tables["none"][1] == {}


@pytest.mark.parametrize(
    ("compare", "left", "is_same"),
    [
        ("spaces", "open ", True),
        ("spaces", "Open", False),
        ("exact", "open ", False),
        ("exact", "open", True),
        ("case", " OPEN", True),
        ("case", "shut", False),
    ],
)
def test_an_environment_says_which_texts_are_the_same(compare: str, left: str, is_same: bool) -> None:
    before, after = {"a": {"status": "open"}}, {"a": {"status": left}}
    state = EndState(before, after, {}, compare)
    assert (end_states.side_effect({"type": "state", "rest": "same"}, state) == "") == is_same
    wanted = {"type": "state", "paths": {"/a/status": "open"}}
    assert (end_states.judge(wanted, state).score == 1.0) == is_same
    asked = {"type": "state", "query": "q", "rows": [["open"]]}
    assert (
        end_states.judge(asked, EndState(before, after, {"q": {"rows": [[left]]}}, compare)).score == 1.0
    ) == is_same
