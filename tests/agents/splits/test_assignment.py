"""The coin of a unit: even, the same everywhere, and with a higher share nobody leaves the candidate."""

from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from flywheel.agents.splits.assignment import Unit, coin
from flywheel.core.evidence.ramp.ramp_plan import WHOLE

SESSIONS = 10_000
texts = st.text(max_size=200)


@given(texts, texts, st.integers(1), st.integers(1), st.integers(0, WHOLE), st.integers(0, WHOLE))
def test_a_higher_share_takes_nobody_from_the_candidate(
    salt: str, name: str, project: int, agent: int, one: int, other: int
) -> None:
    thrown = coin(salt, project, agent, Unit("session", name))
    assert 0 <= thrown < WHOLE
    assert thrown == coin(salt, project, agent, Unit("session", name))
    assert (thrown < min(one, other)) <= (thrown < max(one, other))


def test_shares_lie_within_the_exact_interval() -> None:
    for salt in ("a", "b", "c"):
        coins = [coin(salt, 1, 2, Unit("session", f"s{number}")) for number in range(SESSIONS)]
        for share in (100, 500, 2500, 5000, 9000, 9999):
            least, most = binom.interval(0.999, SESSIONS, share / WHOLE)
            assert least <= sum(thrown < share for thrown in coins) <= most, (salt, share)


def test_another_salt_project_agent_or_kind_is_another_coin() -> None:
    """Those whom one ramp let out to the candidate are not those of the next."""
    ways = [("a", 1, 1, "session"), ("b", 1, 1, "session"), ("a", 2, 1, "session"), ("a", 1, 2, "session")]
    ways.append(("a", 1, 1, "trace"))
    met = [
        {number for number in range(SESSIONS) if coin(salt, project, agent, Unit(kind, f"s{number}")) < 5000}
        for salt, project, agent, kind in ways
    ]
    least, most = binom.interval(0.9999, SESSIONS, 0.25)
    for place, one in enumerate(met):
        for other in met[place + 1 :]:
            assert least <= len(one & other) <= most
