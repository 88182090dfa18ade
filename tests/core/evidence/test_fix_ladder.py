"""The fix ladder: the lightest fix that the evidence supports comes first, and every other one says what blocks it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.core.digests import canonical
from flywheel.core.evidence import fix_ladder
from flywheel.core.evidence.fix_ladder import LADDER, Evidence, recommend
from flywheel.core.evidence.statistics.estimates import Estimate, proportion


def rate(mean: float, n: int = 60) -> Estimate:
    return proportion(round(mean * n), n)


def first(**known: Any) -> fix_ladder.Recommendation:
    return recommend(Evidence(**{"buckets": {}, "k": 8, **known}))[0]


def test_broken_format_of_an_able_model_asks_for_a_prompt() -> None:
    best = first(buckets={"format_error": 35, "wrong_tool": 14}, pass_at_1=rate(0.5), pass_at_k=rate(0.9), corrected=40)
    assert (best.fix, best.blocked_by) == ("prompt", "")
    assert "35 of 49 labelled failures (71% [58, 82]) are broken format." in best.why
    assert "With 8 attempts, 90% [80, 95] of 60 tasks are solved." in best.why
    assert best.evidence["share"]["n"] == 49


def test_broken_format_of_a_model_that_is_not_able_asks_for_sft() -> None:
    best = first(buckets={"format_error": 35}, pass_at_1=rate(0.1), pass_at_k=rate(0.3), corrected=25)
    assert best.fix == "sft"
    assert "70% of tasks were never solved" in best.why


def test_a_prompt_that_was_tried_gives_way_to_sft() -> None:
    known = {"buckets": {"format_error": 35}, "pass_at_1": rate(0.5), "pass_at_k": rate(0.9), "corrected": 25}
    ladder = recommend(Evidence(k=8, tried={"prompt": "version 3 did not pass the gate"}, **known))  # type: ignore[arg-type]
    assert ladder[0].fix == "sft"
    assert {item.fix: item.blocked_by for item in ladder}["prompt"] == "Tried already: version 3 did not pass the gate."


def test_a_fix_that_did_not_last_is_named_where_it_is_offered_again() -> None:
    sentence = "mail@3 came of this, and broken format came back with it: that fix did not last."
    known = {"buckets": {"format_error": 35}, "pass_at_1": rate(0.5), "pass_at_k": rate(0.9)}
    ladder = recommend(Evidence(k=8, returned={"prompt": [sentence]}, **known))  # type: ignore[arg-type]
    assert [item.fix for item in ladder if sentence in item.why] == ["prompt"]
    assert not ladder[0].blocked_by, "it is said, and no bar"


def test_invented_tools_ask_for_a_change_of_tools() -> None:
    assert first(buckets={"hallucinated_api": 8, "wrong_tool": 8}).fix == "tool_change"


def test_failed_retrieval_asks_for_retrieval() -> None:
    assert first(buckets={"retrieval_failure": 9, "bad_planning": 3}).fix == "retrieval"


def test_corrected_actions_and_tasks_that_never_pass_ask_for_sft() -> None:
    best = first(
        buckets={"wrong_arguments": 30, "wrong_tool": 20}, pass_at_1=rate(0.15), pass_at_k=rate(0.35), corrected=45
    )
    assert best.fix == "sft"
    assert "45 of 50 failures have a corrected action." in best.why


def test_head_room_between_one_attempt_and_many_asks_for_rlvr() -> None:
    best = first(buckets={"wrong_arguments": 30}, pass_at_1=rate(0.5), pass_at_k=rate(0.9), corrected=5)
    assert best.fix == "rlvr"
    assert "40 points of head-room" in best.why


def test_head_room_on_tasks_of_several_turns_asks_for_whole_episodes() -> None:
    known: dict[str, Any] = {"buckets": {"wrong_arguments": 30}, "pass_at_1": rate(0.5), "pass_at_k": rate(0.9)}
    played = {item.fix: item for item in recommend(Evidence(k=8, turns=12, **known))}
    assert "take up to 12 turns" in played["rlvr"].blocked_by
    assert not played["environment_rl"].blocked_by
    assert "40 points of head-room" in played["environment_rl"].why
    single = {item.fix: item for item in recommend(Evidence(k=8, **known))}
    assert "take one turn" in single["environment_rl"].blocked_by
    assert not single["rlvr"].blocked_by


def test_attempts_that_are_there_are_offered_to_learn_from_offline() -> None:
    known: dict[str, Any] = {"buckets": {}, "pass_at_1": rate(0.4), "pass_at_k": rate(0.8), "k": 8}
    why = {item.fix: item.why for item in recommend(Evidence(scored=1200, **known))}
    assert "1,200 scored attempts at the training tasks exist: AWR can learn offline" in why["rlvr"]
    assert "AWR" not in why["sft"]
    assert not any("AWR" in item.why for item in recommend(Evidence(**known)))


def test_pairs_ask_for_dpo_before_rlvr() -> None:
    ladder = recommend(
        Evidence(buckets={"other": 30}, pass_at_1=rate(0.5), pass_at_k=rate(0.9), k=8, pairs=80, corrected=5)
    )
    assert [item.fix for item in ladder if not item.blocked_by] == ["dpo", "rlvr"]


def test_the_lightest_supported_fix_is_first() -> None:
    ladder = recommend(
        Evidence(
            buckets={"retrieval_failure": 40, "format_error": 40},
            pass_at_1=rate(0.5),
            pass_at_k=rate(0.9),
            k=8,
            pairs=100,
            corrected=40,
        )
    )
    assert [item.fix for item in ladder if not item.blocked_by] == ["prompt", "retrieval", "sft", "dpo", "rlvr"]


@pytest.mark.parametrize(
    ("known", "fix", "reason"),
    [
        ({}, "tool_change", "0 labelled failures; shares mean something from 10 on"),
        ({"corrected": 3}, "sft", "3 corrected actions; 20 are needed"),
        ({"corrected": 30}, "sft", "No baseline yet"),
        ({"corrected": 30, "pass_at_k": rate(0.9)}, "sft", "Only 10% of tasks are never solved"),
        ({"pairs": 3}, "dpo", "3 pairs; 50 are needed"),
        ({"pairs": 90, "pass_at_1": rate(0.05)}, "dpo", "pass@1 is 5%"),
        ({}, "rlvr", "No baseline yet"),
        ({"pass_at_1": rate(0.05), "pass_at_k": rate(0.3)}, "rlvr", "most groups of attempts fail alike"),
        ({"pass_at_1": rate(0.9), "pass_at_k": rate(0.95)}, "rlvr", "most groups of attempts pass alike"),
        ({"pass_at_1": rate(0.5), "pass_at_k": rate(0.55)}, "rlvr", "pass@8 is only 5 points above pass@1"),
        ({"pass_at_1": rate(0.5, 10), "pass_at_k": rate(0.9, 10)}, "rlvr", "10 tasks; 20 are needed"),
    ],
)
def test_a_blocked_fix_says_what_is_missing(known: dict[str, Any], fix: str, reason: str) -> None:
    ladder = recommend(Evidence(**{"buckets": {}, "k": 8, **known}))
    assert reason in {item.fix: item.blocked_by for item in ladder}[fix]  # type: ignore[index]


def test_without_evidence_every_fix_is_blocked() -> None:
    ladder = recommend(Evidence(buckets={}))
    assert [item.fix for item in ladder] == list(LADDER)
    assert all(item.blocked_by for item in ladder)


def test_the_buckets_that_fixes_aim_at_exist() -> None:
    assert {bucket for buckets in fix_ladder.AIMS.values() for bucket in buckets} <= set(BUCKETS)


RATES = st.none() | st.builds(lambda hits, n: proportion(min(hits, n), n), st.integers(0, 100), st.integers(0, 100))


@given(
    st.dictionaries(st.sampled_from(list(BUCKETS)), st.integers(0, 50)),
    RATES,
    RATES,
    RATES,
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(1, 20),
)
def test_any_evidence_gives_each_fix_once_with_its_numbers(
    buckets: dict[str, int],
    one: Estimate | None,
    many: Estimate | None,
    readable: Estimate | None,
    corrected: int,
    pairs: int,
    turns: int,
) -> None:
    ladder = recommend(Evidence(buckets, one, many, 8, readable, corrected, pairs, turns))
    assert sorted(item.fix for item in ladder) == sorted(LADDER)
    supported = [item.fix for item in ladder if not item.blocked_by]
    assert supported == sorted(supported, key=LADDER.index)
    assert [item.fix for item in ladder][: len(supported)] == supported
    canonical([item.to_json() for item in ladder])


def test_failures_of_the_version_before_count_and_are_said_to_be_its_own() -> None:
    known = {"buckets": {"hallucinated_api": 9, "wrong_tool": 3}, "inherited": 11, "inherited_from": "shop@1"}
    best = first(**known)
    assert best.fix == "tool_change"
    assert "11 of the 12 are of shop@1: this version has no production runs yet." in best.why


def test_a_hosted_model_may_always_change_its_prompt_and_is_never_trained() -> None:
    ladder = recommend(Evidence({"wrong_tool": 30}, rate(0.3), rate(0.3), k=8, corrected=40, pairs=80, is_hosted=True))
    assert (ladder[0].fix, ladder[0].blocked_by) == ("prompt", "")
    assert {item.blocked_by for item in ladder if item.fix in fix_ladder.TRAINED} == {fix_ladder.HOSTED}
    assert not any("Formatting is not" in item.blocked_by for item in ladder)
