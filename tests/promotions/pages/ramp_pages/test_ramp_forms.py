from collections.abc import Callable
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.core.evidence.ramp.ramp_plan import Holdback, Plan, Shadow, with_buckets
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.pages.ramp_pages.ramp_forms import PlanForm
from flywheel.promotions.ramps.ramp_proposals import LiveTraffic
from tests.conftest import Cast

TRAFFIC = LiveTraffic(120, 0.3)
ENTERED: dict[str, Any] = {
    "share": ["5", "25", "50"],
    "sessions": ["100", "100", "100"],
    "minutes": ["60", "60", "60"],
    "finish": "proof",
    "margin": "5",
    "quiet": "2",
    "wait": "24",
    "alpha-failed": "2",
    "on-unsafe": "on",
    "alpha-unsafe": "1",
}
SignIn = Callable[[User], Client]


def data_of(changes: dict[str, Any]) -> QueryDict:
    data = QueryDict(mutable=True)
    for name, value in (ENTERED | changes).items():
        data.setlist(name, value if isinstance(value, list) else [value])
    return data


def form_of(cast: Cast, changes: dict[str, Any] | None = None, proposed: Plan | None = None) -> PlanForm:
    return PlanForm(proposed or Plan(), cast.project, TRAFFIC, None if changes is None else data_of(changes))


def test_what_is_entered_is_the_plan(cast: Cast) -> None:
    plan = form_of(cast, {"share": ["0.5", "25", "99.99"], "margin": "2.5"}).plan()
    assert plan is not None
    assert [stage.share for stage in plan.stages] == [50, 2500, 9999]
    assert plan.alphas == {"failed": 0.02, "unsafe": 0.01}
    assert (plan.margin, plan.quiet_s, plan.wait_s, plan.finish) == (0.025, 120, 86_400, "proof")


def test_a_signal_with_a_margin_is_proved_and_others_are_not(cast: Cast) -> None:
    plan = form_of(cast, {"margin-unsafe": "2.5"}).plan()
    assert plan is not None
    assert plan.margins == {"unsafe": 0.025}
    again = form_of(cast, None, plan)
    assert [field.value() for _, field in again.margins] == [5, 2.5, None, None, None, None]
    wrong = form_of(cast, {"margin-unsafe": "0"})
    assert wrong.plan() is None
    assert (wrong.has_margin_errors, wrong.has_signal_errors) == (True, False)


def test_shadow_and_holdback_are_part_of_the_plan_where_they_are_switched_on(cast: Cast) -> None:
    entered: dict[str, Any] = {
        "has_shadow": "on",
        "shadow_sessions": "50",
        "shadow_minutes": "90",
        "shadow_calls": "400",
        "shadow_dollars": "2.5",
        "shadow_then": "person",
        "has_holdback": "on",
        "held_share": "2.5",
        "held_sessions": "300",
        "held_days": "3",
    }
    plan = form_of(cast, entered).plan()
    assert plan is not None
    assert plan.shadow == Shadow(50, 90, 400, None, 2.5, "person")
    assert plan.holdback == Holdback(250, 300, 3)
    off = form_of(cast, {**entered, "has_shadow": [], "has_holdback": []}).plan()
    assert off is not None
    assert (off.shadow, off.holdback) == (None, None)
    wrong = form_of(cast, {**entered, "shadow_calls": "", "held_share": "11"})
    assert wrong.plan() is None
    assert set(wrong.errors) == {"shadow_calls", "held_share"}
    crossed = form_of(cast, {**entered, "share": ["5", "25", "99"]})
    assert crossed.plan() is None
    assert "97.5%" in crossed.errors["held_share"][0]


def test_the_proposed_plan_comes_back_as_it_was_shown(cast: Cast) -> None:
    proposed = with_buckets(Plan(limits={"slow": 2.5}), ["wrong_tool"])
    form = form_of(cast, None, proposed)
    shown: dict[str, Any] = {name: form[name].value() for name in form.fields if name != "stages"}
    sent = {name: "on" if value is True else str(value) for name, value in shown.items() if value not in (None, False)}
    plan = form_of(cast, {"on-unsafe": [], **sent}, proposed).plan()
    assert plan is not None
    assert plan.limits == {"slow": 2.5}
    assert plan.alphas == {key: pytest.approx(alpha) for key, alpha in proposed.alphas.items() if key != "dear"}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"share": ["0", "25", "50"]}, "stages", "Stage 1: the share is a percentage above 0 and below 100"),
        ({"share": ["5", "25", "100"]}, "stages", "All sessions come with the finish"),
        ({"share": ["5", "NaN", "50"]}, "stages", "Stage 2: the share"),
        ({"share": ["5", "50", "25"]}, "stages", "Stage 3: shares rise, and 25% comes after 50%"),
        ({"share": ["5", "5.001", "50"]}, "stages", "at most two decimals"),
        ({"sessions": ["100", "0", "100"]}, "stages", "Stage 2: enter the sessions as a whole number, at least 1"),
        ({"minutes": ["60", "-1", "60"]}, "stages", "Stage 2: enter the minutes"),
        ({"share": [], "sessions": [], "minutes": []}, "stages", "Add a stage"),
        ({name: ["1"] * 40 for name in ("share", "sessions", "minutes")}, "stages", "Stage 2: shares rise"),
        (
            {"share": [str(n) for n in range(1, 13)], "sessions": ["9"] * 12, "minutes": ["9"] * 12},
            "stages",
            "from 1 to 10",
        ),
        ({"alpha-failed": "4.5"}, "alpha-failed", "Together the signals have 5.5%, and a ramp has 5%"),
        ({"alpha-failed": "6"}, "alpha-failed", "less than or equal to 5"),
        ({"alpha-failed": ""}, "alpha-failed", "required"),
        ({"alpha-unsafe": ""}, "alpha-unsafe", "Enter its part of the 5%"),
        ({"on-slow": "on", "alpha-slow": "0.25"}, "limit-slow", "Enter a limit"),
        ({"margin": "0"}, "margin", "greater than or equal to 0.1"),
        ({"margin-unsafe": "60"}, "margin-unsafe", "less than or equal to 50"),
        ({"on-unsafe": [], "margin-unsafe": "2"}, "margin-unsafe", "Switch the signal on, or leave its margin blank"),
        ({"finish": "never"}, "finish", "never is not one"),
        ({"quiet": "60", "wait": "0.5"}, "wait", "is a number from 3600 to"),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(cast: Cast, changes: dict[str, Any], field: str, words: str) -> None:
    form = form_of(cast, changes)
    assert form.plan() is None
    assert words in form.errors[field].as_text()


def test_each_stage_shows_what_it_would_have_caught(cast: Cast) -> None:
    form = form_of(cast, {"share": ["5", "25", "x"], "sessions": ["1", "400", "100"]})
    short, long, unread = [row["reach"] for row in form.rows]
    assert short == "Stage 1 is too short to catch anything by itself (1 session at 5%)."
    assert long.startswith("Stage 2 would catch ")
    assert long.endswith("points more failures in 80% of ramps (400 sessions at 25%).")
    assert unread == ""


# The page


@pytest.fixture
def client(cast: Cast, sign_in: SignIn) -> Client:
    return sign_in(cast.approver)


def test_the_plan_opens_with_by_steps_and_its_rows_come_and_go(candidate: Candidate, client: Client) -> None:
    url = reverse("promotions:plan", args=["acme", candidate.pk])
    assert b'name="share"' not in client.get(url, {"how": "once"}).content
    opened = client.get(url, {"how": "steps"}).content.decode()
    assert opened.count('name="share"') == 3
    assert "Approve by steps" in opened
    assert "assumes that 30% of its sessions fail" in opened
    rows = {"how": "steps", "rows": "", **ENTERED}
    added = client.get(url, {**rows, "add": ""}).content.decode()
    assert added.count('name="share"') == 4
    assert "Approve by steps" not in added
    fewer = client.get(url, {**rows, "remove": "0"}).content.decode()
    assert fewer.count('name="share"') == 2
    assert 'value="25"' in fewer
    assert 'value="5"' not in fewer.split("</table>")[0]


def test_approving_by_steps_begins_a_ramp(candidate: Candidate, client: Client) -> None:
    url = reverse("promotions:approve", args=["acme", candidate.pk])
    decision = {"generation": candidate.agent.generation, "reason": "better", "how": "steps"}
    answer = client.post(url, {**ENTERED, **decision})
    ramp = Ramp.objects.get()
    assert answer.headers["Location"] == reverse("promotions:ramp", args=["acme", ramp.pk])
    assert [stage.share for stage in ramp.rules.stages] == [500, 2500, 5000]
    assert Agent.objects.get(pk=candidate.agent_id).live == candidate.baseline
    page = client.get(reverse("promotions:candidate", args=["acme", candidate.pk])).content.decode()
    assert "Being released by steps" in page


def test_a_refused_plan_stays_as_it_was_entered_and_nothing_is_approved(candidate: Candidate, client: Client) -> None:
    url = reverse("promotions:approve", args=["acme", candidate.pk])
    decision = {"generation": candidate.agent.generation, "reason": "better", "how": "steps"}
    answer = client.post(url, {**ENTERED, **decision, "share": ["5", "25", "100"]})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert 'value="100"' in page
    assert "Stage 3: the share is a percentage" in page
    assert 'value="steps" checked' in page
    assert not Ramp.objects.exists()
    stale = client.post(url, {**ENTERED, **decision, "generation": 99})
    assert (stale.status_code, Ramp.objects.exists()) == (422, False)
    assert "the live version changed while you decided" in stale.content.decode()
