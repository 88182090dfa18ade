"""A search for a prompt by clicks: asking for it, how it goes, every proposal, and trying the best."""

from collections.abc import Callable

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.accounts.project_settings import provider_keys
from flywheel.edge.jobs import State
from flywheel.evals.models import Result
from flywheel.training.models import FixTrial, PromptAttempt, PromptProposal, PromptSearch, ProposalState
from flywheel.training.pages.fixes import prompt_searches
from tests.conftest import SYSTEM
from tests.pages import page_of
from tests.training.fixes.conftest import BETTER, BUCKET, SERVER, WORSE, Desk, desk, draft
from tests.training.fixes.test_draft_search import WRITER, finished, proposal, search_of

__all__ = ["desk"]

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
NEW = f"/p/acme/training/fixes/new/{BUCKET}/proposals/"
HTMX = {"HX-Request": "true"}


def fields(desk: Desk, **more: str) -> dict[str, str]:
    """What a browser sends."""
    usual = {"proposals": "3", "tasks": "30", "attempts": "", "samples": "2", "seed": "1", "api_key_env": ""}
    return usual | WRITER | {"version": str(desk.parent), "task_set": str(desk.task_set)} | more


def here(search: PromptSearch, rest: str = "") -> str:
    return f"/p/acme/training/fixes/searches/{search.pk}/{rest}"


def test_the_way_to_it_leads_from_the_bucket_over_the_drafts(desk: Desk, sign_in: SignIn) -> None:
    desk.failure()
    client = sign_in(desk.cast.builder)
    page = page_of(client.get(f"/p/acme/training/fixes/new/{BUCKET}/"))
    assert f'href="{NEW}?version=assistant%401&amp;task_set=' in page
    page = page_of(client.get(NEW))
    assert f"<option selected>{desk.task_set}</option>" in page
    assert "Not started" not in page
    assert "This field is required" not in page


def test_it_begins_with_the_version_s_own_server_and_then_with_the_last_one(desk: Desk, sign_in: SignIn) -> None:
    client = sign_in(desk.cast.builder)
    assert f'value="{SERVER["model"]}"' in page_of(client.get(NEW))
    search_of(desk)
    assert f'value="{WRITER["model"]}"' in page_of(client.get(NEW))


def test_where_nobody_serves_the_version_it_begins_with_a_key_that_there_is(desk: Desk, sign_in: SignIn) -> None:
    provider_keys.enter(
        project=desk.cast.project,
        actor=Actor(desk.cast.admin),
        name="OPENAI_API_KEY",
        base_url="https://api.openai.com/v1",
        secret="sk-secret",
    )
    own = desk.build.version(desk.parent.agent)
    page = page_of(sign_in(desk.cast.builder).get(NEW, {"version": str(own)}))
    assert 'value="https://api.openai.com/v1"' in page
    assert 'value="OPENAI_API_KEY"' in page
    assert "sk-secret" not in page


def test_it_says_what_so_much_costs_before_anything_is_asked(desk: Desk, sign_in: SignIn) -> None:
    client = sign_in(desk.cast.builder)
    page = page_of(client.get(NEW, fields(desk), headers=HTMX))
    assert "<html" not in page
    # 12 tasks with the current prompt and with 3 others, and 12 × 2 samples of two versions
    assert "At most <b>96 attempts</b> at training tasks: 12 tasks" in page
    assert "and 48 attempts kept" in page
    assert "assistant@1 has no known cost per attempt" in page
    desk.start(draft("better", BETTER))
    desk.carry_out()
    Result.objects.update(cost_usd=0.25)
    page = page_of(client.get(NEW, fields(desk), headers=HTMX))
    assert "up to <b>$24.00</b>" in page
    assert "62 is not between 63" in page_of(client.get(NEW, fields(desk, attempts="62"), headers=HTMX))
    assert "Correct the marked fields" in page_of(client.get(NEW, fields(desk, tasks="many"), headers=HTMX))
    assert not PromptSearch.objects.exists()


def test_it_is_asked_for_once_and_the_page_shows_it(desk: Desk, sign_in: SignIn) -> None:
    client = sign_in(desk.cast.builder)
    sent = fields(desk, key="00000000-0000-4000-8000-000000000001")
    answer = client.post(NEW, sent)
    search = PromptSearch.objects.get()
    assert answer["Location"] == here(search) == client.post(NEW, sent)["Location"]
    assert (search.most_proposals, search.most_attempts, search.samples) == (3, 96, 2)
    page = page_of(client.get(here(search)))
    assert f'hx-get="{here(search, "live/")}" hx-trigger="every 2s"' in page
    assert "waiting for a worker" in page
    assert "0 / 96" in page
    assert page_of(client.get(here(search, "live/"))).count("as it is</a>") == 1
    reader = page_of(sign_in(desk.cast.reviewer).get(here(search)))
    assert "Stop" not in reader


@pytest.mark.parametrize(
    ("changed", "field", "problem"),
    [
        ({"base_url": "nowhere"}, "base_url", "nowhere"),
        ({"model": ""}, "model", "This field is required"),
        ({"api_key_env": "DATABASE_URL"}, "api_key_env", "must end in _API_KEY"),
        ({"proposals": "0"}, "proposals", "greater than or equal to 1"),
        ({"tasks": "201"}, "tasks", "less than or equal to 200"),
        ({"attempts": "62"}, "attempts", "62 is not between 63 and 100000"),
        ({"samples": "65"}, "samples", "less than or equal to 64"),
        ({"seed": "-1"}, "seed", "greater than or equal to 0"),
    ],
)
def test_what_is_wrong_is_told_at_its_field(
    desk: Desk, sign_in: SignIn, changed: dict[str, str], field: str, problem: str
) -> None:
    answer = sign_in(desk.cast.builder).post(NEW, fields(desk, **changed))
    assert answer.status_code == 422
    after = page_of(answer).partition(f'name="{field}"')[2].partition('<div class="field">')[0]
    assert problem in after
    assert not PromptSearch.objects.exists()


def test_a_program_is_refused_above_the_form(desk: Desk, sign_in: SignIn) -> None:
    program = desk.build.version(endpoint={"kind": "program", "way": "http", "url": "http://127.0.0.1:9/run"})
    client = sign_in(desk.cast.builder)
    assert "is a program" in page_of(client.get(NEW, {"version": str(program)}))
    answer = client.post(NEW, fields(desk, version=str(program)))
    assert answer.status_code == 422
    assert "<b>Not started.</b> version: " in page_of(answer)


def test_a_bucket_or_version_that_is_none_is_not_found(desk: Desk, sign_in: SignIn) -> None:
    client = sign_in(desk.cast.builder)
    assert client.get(NEW.replace(BUCKET, "nowhere")).status_code == 404
    assert client.get(NEW, {"version": "nobody@1"}).status_code == 404


def test_it_is_stopped_and_resumed_and_a_failure_says_why(desk: Desk, sign_in: SignIn) -> None:
    client, search = sign_in(desk.cast.builder), search_of(desk)
    assert client.post(here(search, "cancel/"))["Location"] == here(search)
    assert "<b>Stopped.</b>" in page_of(client.get(here(search)))
    client.post(here(search, "resume/"))
    search.refresh_from_db()
    assert search.state == State.QUEUED
    PromptSearch.objects.update(state=State.FAILED, error="the model that proposes did not answer: <b>no</b>")
    page = page_of(client.get(here(search)))
    assert "did not answer: &lt;b&gt;no&lt;/b&gt;" in page
    assert client.get(here(search, "live/")).headers["HX-Refresh"] == "true"


def test_every_proposal_is_shown_with_what_became_of_it(desk: Desk, sign_in: SignIn) -> None:
    search = finished(desk)
    own = search.proposals.get(place=0)
    search.proposals.filter(place__gt=0).update(parent=own)
    search.proposals.filter(place=3).update(problem="it is empty <b>")
    page = page_of(sign_in(desk.cast.builder).get(here(search)))
    rows = [row.partition("</tr>")[0] for row in page.partition("<tbody>")[2].split("<tr")[1:5]]
    own_row, better, worse, refused = rows
    assert "as it is</a>" in own_row
    assert "<b>0.50</b>" in own_row
    assert "(n&nbsp;2)" in own_row
    assert ("★" in better, "★" in worse) == (True, False)
    assert "<b>1.00</b>" in better
    assert 'data-label="unscored">1</td>' in better, "one without a score"
    assert "no better on its first tasks" in worse
    assert "it is empty &lt;b&gt;" in refused
    assert 'title="not scored"' in refused
    assert "<ins>" in page.partition('id="best"')[2]
    assert "Name the person." in page.partition('id="best"')[2]
    assert "9 / " in page


def test_while_it_goes_on_the_best_so_far_is_marked_and_nothing_is_tried(desk: Desk, sign_in: SignIn) -> None:
    search = finished(desk)
    PromptSearch.objects.update(state=State.RUNNING, message="proposal 3: 1 of 12 tasks", done=2)
    client = sign_in(desk.cast.builder)
    for page in (page_of(client.get(here(search))), page_of(client.get(here(search, "live/")))):
        assert "best so far" in page
        assert "2 / 3 proposals · proposal 3: 1 of 12 tasks" in page
        assert "Try on all training tasks" not in page
    answer = client.post(here(search, "try/"), {"proposal": "1"})
    assert answer.status_code == 409
    assert "is not over" in page_of(answer)


def test_a_proposal_has_its_difference_its_text_and_its_attempts_beside_those_before(
    desk: Desk, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = finished(desk)
    PromptProposal.objects.filter(place=1).update(parent=search.proposals.get(place=0), text=f"{BETTER} <script>")
    attempts = PromptAttempt.objects.filter(proposal__place=1)
    attempts.update(reason="all <b>right</b>", transcript="User: <i>hm</i>\u202e")
    attempts.filter(score=None).update(reason="", cause="timeout")
    client = sign_in(desk.cast.reviewer)
    page = page_of(client.get(here(search, "1/")))
    assert "<ins> Name the person. &lt;script&gt;</ins>" in page
    assert "all &lt;b&gt;right&lt;/b&gt;" in page
    assert "User: &lt;i&gt;hm&lt;/i&gt;⟨U+202E⟩" in page
    rows = page.partition("<tbody>")[2].split("<tr>")[1:]
    assert [row.count('title="not scored: timed out"') for row in rows] == [1, 0, 0]
    assert [(row.count(">0.00</td>"), row.count(">1.00</td>")) for row in rows] == [(0, 0), (0, 2), (1, 1)]
    monkeypatch.setattr(prompt_searches, "ATTEMPTS", 2)
    page = page_of(client.get(here(search, "1/")))
    assert "1–2 of 3" in page
    assert 'rel="next"' in page
    PromptProposal.objects.filter(place=3).update(problem="it is empty")
    page = page_of(client.get(here(search, "3/")))
    assert "<b>Refused and not tried:</b> it is empty." in page
    assert client.get(here(search, "4/")).status_code == 404
    page = page_of(client.get(here(search, "0/")))
    assert "The current prompt" in page
    assert SYSTEM in page


def test_its_best_is_tried_and_both_lead_to_each_other(desk: Desk, sign_in: SignIn) -> None:
    search, client = finished(desk), sign_in(desk.cast.builder)
    page = page_of(client.get(here(search)))
    ticks = page.partition("<tbody>")[2].partition("</tbody>")[0]
    assert ticks.count('name="proposal"') == 2, "neither the current prompt nor the refused one"
    assert ticks.count("checked") == 1
    answer = client.post(here(search, "try/"), {"proposal": ["9"]})
    assert answer.status_code == 422
    assert f"<b>Not tried.</b> 9 is no proposal of {search} that can be tried" in page_of(answer)
    assert client.post(here(search, "try/"), {"proposal": ["x"]}).status_code == 422
    assert not FixTrial.objects.exists()
    answer = client.post(here(search, "try/"), {"proposal": ["1", "2"]})
    trial = FixTrial.objects.get()
    assert answer["Location"] == f"/p/acme/training/fixes/{trial.pk}/"
    assert {draft.version.system_prompt for draft in trial.drafts.all()} == {BETTER, WORSE}
    assert here(search) in page_of(client.get(answer["Location"]))
    page = page_of(client.get(here(search)))
    assert answer["Location"] in page
    assert "Try on all training tasks" not in page
    assert "Resume" not in page
    reviewer = sign_in(desk.cast.reviewer)
    assert reviewer.post(here(search, "try/"), {"proposal": "1"}).status_code == 403


def test_lists_and_pages_of_what_it_is_about_lead_to_it(desk: Desk, sign_in: SignIn) -> None:
    search, client = finished(desk), sign_in(desk.cast.builder)
    for address in (
        "/p/acme/training/fixes/",
        f"/p/acme/training/fixes/new/{BUCKET}/",
        NEW,
        "/p/acme/training/fixes/searches/",
        f"/p/acme/training/fixes/searches/?bucket={BUCKET}",
        f"/p/acme/failures/buckets/{BUCKET}/",
        "/p/acme/agents/assistant/versions/1/",
    ):
        assert here(search) in page_of(client.get(address)), address
    assert here(search) not in page_of(client.get("/p/acme/training/fixes/searches/?bucket=wrong_tool"))
    assert "No search for a prompt yet" in page_of(client.get("/p/acme/training/fixes/searches/?bucket=x"))


def test_one_without_a_gain_says_so_and_can_still_be_tried(desk: Desk, sign_in: SignIn) -> None:
    search = search_of(desk)
    proposal(search, 0, SYSTEM, [1.0, 1.0])
    proposal(search, 1, WORSE, [0.0, 0.0], ProposalState.DROPPED)
    PromptSearch.objects.update(state=State.SUCCEEDED)
    page = page_of(sign_in(desk.cast.builder).get(here(search)))
    assert "No proposal beats the current prompt." in page
    assert "★" not in page
    assert "Try on all training tasks" in page
