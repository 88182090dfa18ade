"""Disagreements of a shadow: both answers side by side, and a person's word that leads to the next."""

import re
from collections.abc import Callable
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.agents.models import ShadowCopy
from flywheel.promotions.models import Candidate, Ramp, ShadowVerdict
from flywheel.trajectories.models import Trajectory
from tests.conftest import Cast
from tests.promotions.ramps.test_shadow_comparing import begin, copied, look

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


@pytest.fixture
def ramp(candidate: Candidate, cast: Cast) -> Ramp:
    """In the shadow, with five compared calls; at the second, third and fifth the two differ."""
    ramp = begin(candidate, cast, sessions=50)
    for number, found in enumerate(("1", "2", "3", "1", "<b>5")):
        copied(ramp, number, {"id": found})
    return look(ramp)


@pytest.fixture
def client(cast: Cast, sign_in: SignIn) -> Client:
    return sign_in(cast.reviewer)


def address(ramp: Ramp, page: str, *rest: int) -> str:
    return reverse(f"promotions:{page}", args=["acme", ramp.pk, *rest])


def differing(ramp: Ramp) -> list[int]:
    """The newest first."""
    rows = ShadowCopy.objects.filter(split=ramp.split, differs=True)
    return list(rows.order_by("-pk").values_list("pk", flat=True))


def test_only_calls_at_which_the_two_differ_are_listed_the_newest_first(ramp: Ramp, client: Client) -> None:
    page = client.get(address(ramp, "shadow"))
    assert [row.pk for row in page.context["page"].items] == differing(ramp)
    assert len(differing(ramp)) == 3
    for pk in differing(ramp):
        assert address(ramp, "shadow_pair", pk) in page.content.decode()


def test_both_answers_stand_side_by_side_with_what_was_asked(ramp: Ramp, client: Client) -> None:
    copy = ShadowCopy.objects.get(pk=differing(ramp)[0])
    page = client.get(address(ramp, "shadow_pair", copy.pk)).content.decode()
    assert "Where is order 1?" in page
    answers = [unescape(each) for each in re.findall(r'<pre class="json">(.*?)</pre>', page, re.DOTALL)]
    assert answers == ['{\n  "id": "1"\n}', '{\n  "id": "<b>5"\n}']
    assert "<b>5" not in page, "what an agent wrote is text"
    for trace_id in (copy.trace_id, copy.copy_trace_id):
        assert reverse("trajectories:detail", args=["acme", trace_id]) in page
    assert page.index(str(ramp.candidate.baseline)) < page.index(f"{ramp.candidate.version}</h2>")


def test_a_verdict_leads_to_the_next_disagreement_without_one(ramp: Ramp, client: Client, cast: Cast) -> None:
    newest, middle, oldest = differing(ramp)
    said = client.post(address(ramp, "say_verdict", newest), {"verdict": "live", "note": "the wrong <i>order</i>"})
    assert said.headers["Location"] == address(ramp, "shadow_pair", middle)
    found = ShadowVerdict.objects.get()
    assert (found.copy_id, found.verdict, found.by) == (newest, "live", cast.reviewer)
    page = client.get(address(ramp, "shadow_pair", newest)).content.decode()
    assert "The live version&#x27;s is better" in page
    assert "the wrong &lt;i&gt;order&lt;/i&gt;" in page
    assert "the live version&#x27;s is better" in client.get(address(ramp, "shadow")).content.decode()
    client.post(address(ramp, "say_verdict", middle), {"verdict": "both"})
    again = client.post(address(ramp, "say_verdict", newest), {"verdict": "wrong"})
    assert again.headers["Location"] == address(ramp, "shadow_pair", oldest), "who has a verdict is passed over"
    last = client.post(address(ramp, "say_verdict", oldest), {"verdict": "candidate"})
    assert last.headers["Location"] == address(ramp, "shadow")
    assert [row.verdict for row in ShadowVerdict.objects.filter(copy=newest)] == ["wrong", "live"]


def test_a_verdict_that_is_none_is_told_at_the_form_and_nothing_is_kept(ramp: Ramp, client: Client) -> None:
    [newest, *_] = differing(ramp)
    answer = client.post(address(ramp, "say_verdict", newest), {"verdict": "better", "note": "I typed this"})
    assert answer.status_code == 422
    assert answer.context["form"].errors["verdict"]
    assert "I typed this" in answer.content.decode()
    assert not ShadowVerdict.objects.exists()


def test_an_answer_that_is_no_longer_stored_is_told_apart(ramp: Ramp, client: Client, cast: Cast) -> None:
    copy = ShadowCopy.objects.get(pk=differing(ramp)[0])
    Trajectory.objects.filter(project=cast.project, trace_id=copy.copy_trace_id).delete()
    page = client.get(address(ramp, "shadow_pair", copy.pk)).content.decode()
    assert page.count("This answer is no longer stored.") == 1
    assert "Where is order 1?" in page
    Trajectory.objects.filter(project=cast.project, trace_id=copy.trace_id).delete()
    assert "The call is no longer stored." in client.get(address(ramp, "shadow_pair", copy.pk)).content.decode()
