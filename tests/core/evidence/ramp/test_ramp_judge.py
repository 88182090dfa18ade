import json
import math
import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.evidence.ramp.ramp_judge import PROOF, Judgement, Session, doubts, harms, proof
from flywheel.core.evidence.ramp.ramp_plan import Plan, with_buckets

PLAN = with_buckets(Plan(), ["wrong_tool"])


def sessions(
    count: int, *, seed: int, live: float, candidate: float, share: float = 0.5, known: float = 1.0
) -> list[Session]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        is_candidate = rng.random() < share
        failed = float(rng.random() < (candidate if is_candidate else live))
        parts = {"failed": failed if rng.random() < known else None, "unsafe": 0.0, "bucket:wrong_tool": failed}
        found.append(Session(is_candidate, share, parts))
    return found


PARTS = st.one_of(st.none(), st.floats(0, 1))
SESSIONS = st.lists(
    st.builds(
        Session,
        st.booleans(),
        st.sampled_from([0.05, 0.25, 0.5]),
        st.fixed_dictionaries({"failed": PARTS, "unsafe": PARTS, "bucket:wrong_tool": PARTS}),
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(SESSIONS, st.integers(0, 30))
def test_stopped_anywhere_it_goes_on_from_its_row_to_the_last_bit(units: list[Session], at: int) -> None:
    whole_path, whole = Judgement.begin(PLAN).follow(units)
    first_path, state = Judgement.begin(PLAN).follow(units[:at])
    second_path, state = Judgement.from_json(json.loads(json.dumps(state.to_json()))).follow(units[at:])
    assert first_path + second_path == whole_path
    assert state == whole


def test_what_is_unknown_moves_no_wealth_but_that_of_missing() -> None:
    _, after = Judgement.begin(PLAN).follow([Session(True, 0.5, {"failed": None})])
    wealth = after.wealth
    assert {key: value for key, value in wealth.items() if key != "missing"} == dict.fromkeys(PLAN.signals, 1.0)
    assert wealth["missing"] != 1.0


def test_a_candidate_that_fails_much_more_often_is_taken_back_and_one_that_does_not_is_not() -> None:
    _, worse = Judgement.begin(PLAN).follow(sessions(600, seed=1, live=0.2, candidate=0.5))
    assert set(harms(PLAN, worse.wealth)) == {"failed", "bucket:wrong_tool"}
    _, same = Judgement.begin(PLAN).follow(sessions(600, seed=2, live=0.2, candidate=0.2))
    assert harms(PLAN, same.wealth) == []


def test_arms_that_are_not_as_large_as_planned_are_doubted() -> None:
    judgement = Judgement.begin(PLAN)
    assert doubts(PLAN, judgement.wealth, [(500, 5, 95), (5000, 50, 50)]) == {}
    found = doubts(PLAN, judgement.wealth, [(500, 60, 40), (5000, 50, 50)])
    assert "60 of 100 sessions at 5%" in found["shares"]
    assert doubts(PLAN, judgement.wealth, [(500, 0, 0)]) == {}


def test_results_that_are_missing_in_one_arm_are_doubted() -> None:
    rng = random.Random(3)
    units = []
    for _ in range(600):
        is_candidate = rng.random() < 0.5
        is_known = rng.random() < (0.5 if is_candidate else 1.0)
        units.append(Session(is_candidate, 0.5, {"failed": 0.0 if is_known else None}))
    _, after = Judgement.begin(PLAN).follow(units)
    assert doubts(PLAN, after.wealth, [(5000, 300, 300)]) == {
        "missing": "results are missing more often in one arm than in the other"
    }
    assert harms(PLAN, after.wealth) == []


def test_a_gain_is_proved_and_nothing_is_proved_of_no_session() -> None:
    assert proof(PLAN, []) == 1.0
    assert proof(PLAN, sessions(300, seed=4, live=0.6, candidate=0.2)) >= 1 / PROOF
    assert proof(PLAN, sessions(300, seed=5, live=0.2, candidate=0.3)) < 1 / PROOF
    assert math.isfinite(proof(PLAN, sessions(50, seed=6, live=1.0, candidate=0.0)))


def test_the_proof_covers_each_signal_that_has_a_margin() -> None:
    known = sessions(2000, seed=4, live=0.6, candidate=0.2)
    alone = proof(PLAN, known)
    both = replace(PLAN, margins={"unsafe": 0.02})
    assert 1 / PROOF <= proof(both, known) < alone, "no session shows any, which is proved later than such a gain"
    harmful = [
        replace(each, parts={**each.parts, "unsafe": float(each.is_candidate and place % 20 == 0)})
        for place, each in enumerate(known)
    ]
    assert proof(PLAN, harmful) == alone
    assert proof(both, harmful) < 1 / PROOF, "5% of the candidate's are unsafe"
    unknown = [replace(each, parts={"failed": each.parts["failed"]}) for each in known]
    assert proof(both, unknown) == 1.0
