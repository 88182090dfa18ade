"""How alike failures are, and the clusters of those that are: against known groups, and by properties."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.evidence.similarity import average_linkage, failure_similarity
from flywheel.core.evidence.similarity.failure_similarity import WEIGHTS, Space, Terms, nearest, pack, read
from flywheel.core.traces import Message, Step, ToolCall, Trace

GROUPS = {
    "delete": ("Cancel my meeting with {} on monday", "calendar.delete", {"event_id": "0"}, "Event deleted."),
    "forward": ("Forward the last mail of {} to the team", "email.forward", {"email_id": "last"}, "Email not found."),
    "assign": ("Give all tasks of {} to somebody else", "tasks.update", {"task_id": "1", "owner": "x"}, "Done."),
}
PEOPLE = ["Bako", "Nadia", "Jinsoo", "Fatima", "Santiago", "Yuki", "Raj", "Lena", "Carlos", "Aisha"]


def failed(asked: str, tool: str, arguments: dict[str, Any] | str, answer: str, closing: str = "It is done.") -> Trace:
    call = ToolCall("c1", tool, arguments)
    return Trace(
        "t",
        [
            Step("u", "user", output=[Message("user", asked)]),
            Step("a", "assistant", output=[Message("assistant", "", (call,))]),
            Step("o", "tool", tool_name=tool, tool_call_id="c1", result=answer),
            Step("z", "assistant", output=[Message("assistant", closing)]),
        ],
    )


def terms(group: str, person: str = "Bako", said: str = "") -> Terms:
    asked, tool, arguments, answer = GROUPS[group]
    return read(failed(asked.format(person), tool, arguments, answer), "a", said)


def space(groups: list[str], weights: dict[str, float] = WEIGHTS) -> Space:
    return Space.of([pack(terms(group, PEOPLE[at % len(PEOPLE)])) for at, group in enumerate(groups)], weights)


def test_a_failure_is_read_by_what_was_asked_what_went_wrong_and_its_calls() -> None:
    found = terms("forward", said="the id occurs nowhere")
    assert {"forward", "mail", "bako", "team"} <= set(found["asked"])
    assert {"last", "not", "found", "occurs", "nowhere"} <= set(found["wrong"])
    assert {
        "email.forward",
        "email.forward(email_id)",
        "email.forward errs",
        "fails at email.forward",
        "start → email.forward",
        "email.forward → end",
    } == set(found["calls"])


def test_numbers_case_and_the_ends_of_words_do_not_set_failures_apart() -> None:
    one, other = (
        read(failed(text, "t", {}, ""), "a")["asked"]
        for text in ("CANCEL meetings 17 and 2031", "cancelled meeting 4 and 5")
    )
    assert {"0", "and", "~cance", "~meeti"} <= set(one) & set(other) | {"~cance"}
    assert one["0"] == 2


def test_text_without_spaces_is_read_by_pairs_of_characters() -> None:
    found = read(failed("删除我的会议", "t", {}, ""), "a")["asked"]
    assert {"删除", "会议"} <= set(found)


def test_what_a_sketch_keeps_is_no_text_and_small() -> None:
    packed = pack(terms("forward"))
    assert b"forward" not in b"".join(packed.values())
    assert sum(len(part) for part in packed.values()) < 400


def test_values_of_arguments_are_no_shape() -> None:
    one = read(failed("a", "t", {"id": "secret"}, ""), "a")["calls"]
    assert one == read(failed("b", "t", {"id": "other"}, ""), "a")["calls"]
    assert one != read(failed("a", "t", {"name": "secret"}, ""), "a")["calls"]


def test_a_run_without_anything_can_be_read_and_compared() -> None:
    empty = read(Trace("t", []))
    found = nearest(empty, [pack(empty), pack(terms("delete"))])
    assert found[0].at == 0
    assert found[0].likeness == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("weights", [WEIGHTS, failure_similarity.TEXT_ALONE, failure_similarity.CALLS_ALONE])
def test_known_groups_are_found_again(weights: dict[str, float]) -> None:
    groups = [*GROUPS] * 8
    found = average_linkage.cluster(space(groups, weights).rows, 0.6)
    assert [{groups[at] for at in cluster} for cluster in found.clusters] == [{"delete"}, {"forward"}, {"assign"}]
    assert found.alone == []
    assert found.linked == 24


@pytest.mark.parametrize("at_once", [2, 3, 20, 119])
def test_groups_are_found_in_rounds_too_and_again_the_same_with_the_same_seed(at_once: int) -> None:
    groups = [*GROUPS] * 40
    rows = space(groups).rows
    found = average_linkage.cluster(rows, 0.6, seed=3, at_once=at_once)
    assert found.linked < 120
    assert sorted(len(cluster) for cluster in found.clusters) == [40, 40, 40]
    assert all(len({groups[at] for at in cluster}) == 1 for cluster in found.clusters)
    assert found == average_linkage.cluster(rows, 0.6, seed=3, at_once=at_once)


def test_one_that_is_like_no_other_stays_alone() -> None:
    odd = pack(read(failed("Translate this poem", "dictionary.look_up", {"word": "Weltschmerz"}, "pain"), "a"))
    rows = Space.of([*(pack(terms("delete", person)) for person in PEOPLE), odd], WEIGHTS).rows
    found = average_linkage.cluster(rows, 0.6)
    assert (found.clusters, found.alone) == ([list(range(10))], [10])


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_failures_are_enough(count: int) -> None:
    found = average_linkage.cluster(space(["delete"] * count).rows, 0.6)
    assert found.clusters == ([[0, 1]] if count == 2 else [])
    assert found.alone == ([] if count == 2 else [0])


def test_a_person_may_stop_between_rounds() -> None:
    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        average_linkage.cluster(space([*GROUPS] * 4).rows, 0.6, between=stop)


def test_a_cluster_is_measured_and_told_by_what_sets_it_apart() -> None:
    groups = [*GROUPS] * 8
    all_of_them = space(groups)
    mine = [at for at, group in enumerate(groups) if group == "forward"]
    found = average_linkage.measure(all_of_them, mine)
    exact = (all_of_them.rows[mine] @ all_of_them.rows[mine].T).toarray()
    np.fill_diagonal(exact, 0)
    assert found.cohesion == pytest.approx(exact.sum() / (8 * 7), abs=1e-5)
    assert found.likeness == pytest.approx(exact.sum(axis=1) / 7, abs=1e-5)
    assert found.medoid == int(exact.sum(axis=1).argmax())
    shared = failure_similarity.telling(found.weights, all_of_them, failure_similarity.names_of([terms("forward")]))
    assert {"forward", "mail", "team"} <= set(shared.words)
    assert "email.forward(email_id)" in shared.calls
    assert average_linkage.measure(all_of_them, [0]).cohesion is None


def test_the_nearest_come_first_and_say_why() -> None:
    others = [pack(terms(group, person)) for group in GROUPS for person in PEOPLE[1:4]]
    found = nearest(terms("forward", "Bako"), others, most=5)
    assert {near.at for near in found[:3]} == {3, 4, 5}
    assert [near.likeness for near in found] == sorted((near.likeness for near in found), reverse=True)
    assert found[0].likeness == pytest.approx(sum(WEIGHTS[part] * found[0].parts[part] for part in WEIGHTS), abs=1e-5)
    mine = terms("forward", "Bako")
    assert found[0].shared.words
    assert set(found[0].shared.words) <= set(mine["asked"]) | set(mine["wrong"])
    assert "fails at email.forward" in found[0].shared.calls
    assert nearest(terms("forward"), []) == []


LIMITS = settings(max_examples=60, deadline=None)
FAILURES = st.lists(
    st.builds(
        lambda asked, tool, answer, said: read(failed(asked, tool, {"a": 1}, answer), "a", said),
        st.text(max_size=30),
        st.sampled_from(["x", "y.z", "", "\ud800"]),
        st.text(max_size=30),
        st.text(max_size=10),
    ),
    min_size=1,
    max_size=25,
)


@given(FAILURES, st.floats(0.05, 0.95), st.integers(2, 30))
@LIMITS
def test_every_failure_is_in_one_cluster_or_alone(found: list[Terms], apart: float, at_once: int) -> None:
    rows = Space.of([pack(one) for one in found], WEIGHTS).rows
    grouping = average_linkage.cluster(rows, apart, at_once=at_once)
    assert sorted([at for cluster in grouping.clusters for at in cluster] + grouping.alone) == list(range(len(found)))
    assert all(len(cluster) > 1 for cluster in grouping.clusters)
    sizes = [len(cluster) for cluster in grouping.clusters]
    assert sizes == sorted(sizes, reverse=True)


@given(FAILURES)
@LIMITS
def test_likeness_is_between_nothing_and_all_and_equal_failures_have_all_of_it(found: list[Terms]) -> None:
    packed = [pack(one) for one in found]
    near = nearest(found[0], packed, most=len(found))
    assert all(0 <= one.likeness <= 1 + 1e-5 for one in near)
    assert near[0].likeness == pytest.approx(1, abs=1e-5)
    assert packed[near[0].at] == packed[0]
