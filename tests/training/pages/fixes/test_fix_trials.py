"""Trying a fix by clicks and by calls: the form, its drafts, the table, and going on."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client

from flywheel.accounts.models import User
from flywheel.agents.models import Artifact, Version
from flywheel.agents.version_content import MAX_TOOLS
from flywheel.environments.models import Split
from flywheel.evals.models import EvalRun
from flywheel.failures.models import Decision, Failure
from flywheel.promotions.models import Candidate
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.fixes.example_choice import examples_for
from flywheel.training.fixes.trial_lifecycle import MOST_DRAFTS
from flywheel.training.models import FixTrial
from flywheel.training.pages.fixes import fix_forms
from tests import conftest
from tests.conftest import SYSTEM
from tests.pages import page_of
from tests.training.conftest import Room
from tests.training.fixes.conftest import BETTER, BUCKET, WORSE, Desk, desk, draft

__all__ = ["desk"]

pytestmark = pytest.mark.django_db
TOOLS: Any = conftest.TOOLS
SignIn = Callable[[User], Client]
Headers = Callable[..., dict[str, str]]
NEW = f"/p/acme/training/fixes/new/{BUCKET}/"


def fields(desk: Desk, *prompts: str, **more: str) -> dict[str, str]:
    """What a browser sends of these drafts."""
    found = {"version": str(desk.parent), "task_set": str(desk.task_set), "samples": "2", "seed": "1", "tokens": "500"}
    found["draft-count"] = str(len(prompts))
    for place, prompt in enumerate(prompts):
        tools = {f"tool-{number}": tool["description"] for number, tool in enumerate(TOOLS)}
        said = {"name": f"Draft {place + 1}", "system_prompt": prompt, **tools}
        found |= {f"draft-{place}-{name}": text for name, text in said.items()}
    return found | more


def test_the_bucket_leads_to_the_form_which_begins_with_what_is_most_often_tried(desk: Desk, sign_in: SignIn) -> None:
    desk.failure(note="Forgets the <b>name</b>", corrected={"tool": "email.send", "arguments": {}})
    assert NEW in page_of(sign_in(desk.cast.builder).get(f"/p/acme/failures/buckets/{BUCKET}/"))
    assert NEW not in page_of(sign_in(desk.cast.reviewer).get(f"/p/acme/failures/buckets/{BUCKET}/"))
    page = page_of(sign_in(desk.cast.builder).get(NEW))
    assert 'name="draft-count" value="2"' in page
    assert page.count(f">\n{SYSTEM}") == 2
    assert "&lt;examples&gt;" in page
    assert "of 12 corrected failures in the training split" in page
    assert "Forgets the &lt;b&gt;name&lt;/b&gt;" in page
    assert f"<option selected>{desk.task_set}</option>" in page


def test_drafts_are_added_and_removed_and_what_was_written_stays(desk: Desk, sign_in: SignIn) -> None:
    client = sign_in(desk.cast.builder)
    page = page_of(client.post(NEW, fields(desk, "mine", add="examples")))
    assert 'value="2"' in page
    assert "mine</textarea>" in page
    assert 'value="Examples 1"' in page
    page = page_of(client.post(NEW, fields(desk, "first", "second", remove="0")))
    assert "first</textarea>" not in page
    assert "second</textarea>" in page
    assert "Add a draft" not in page_of(client.post(NEW, fields(desk, *[str(n) for n in range(7)], add="prompt")))
    assert FixTrial.objects.count() == 0


def test_a_draft_of_sampling_is_started_and_an_impossible_one_is_told_at_its_field(desk: Desk, sign_in: SignIn) -> None:
    client = sign_in(desk.cast.builder)
    page = page_of(client.get(NEW))
    assert 'name="draft-0-temperature" value="1.0"' in page
    page = page_of(client.post(NEW, fields(desk, SYSTEM) | {"draft-0-top_p": "0"}))
    assert "0 leaves nothing to choose from" in page
    sent = fields(desk, SYSTEM) | {"draft-0-temperature": "0.2", "draft-0-top_p": "", "draft-0-max_tokens": "64"}
    answer = client.post(NEW, sent)
    (made,) = FixTrial.objects.get().drafts.all()
    assert (made.changes, made.version.sampling["temperature"]) == (["sampling"], 0.2)
    assert ">sampling</a>" in page_of(client.get(answer["Location"]))
    page = page_of(client.get(f"/p/acme/agents/assistant/versions/{made.version.number}/against/1/"))
    assert "0.2" in page


def test_the_drafts_are_started_and_the_page_tells_how_they_do(desk: Desk, sign_in: SignIn) -> None:
    client = sign_in(desk.cast.trainer)
    sent = fields(desk, f"{BETTER}\r\nNow.", SYSTEM, WORSE)
    answer = client.post(NEW, sent | {"draft-2-tool-1": "Mail <one>."})
    trial = FixTrial.objects.get()
    assert answer["Location"] == f"/p/acme/training/fixes/{trial.pk}/"
    first, second = trial.drafts.order_by("place")
    assert (first.version.system_prompt, first.changes) == (f"{BETTER}\nNow.", ["prompt"])
    assert second.changes == ["prompt", "tool_change"], "the draft that changed nothing was left out"
    page = page_of(client.get(answer["Location"]))
    assert 'hx-trigger="every 2s"' in page
    assert "Measure the best" not in page
    desk.carry_out()
    page = page_of(client.get(answer["Location"]))
    assert "hx-trigger" not in page
    assert "so that all of them hold together at 95%" in page
    assert "+50.0" in page
    assert "24 held-out tasks, measured 0 times before" in page
    assert "train on from" not in " ".join(page.split()), "nothing here can train a hosted model"
    assert "Measure the best" not in page_of(sign_in(desk.cast.builder).get(answer["Location"]))
    assert client.get(f"{answer['Location']}live/").headers["HX-Refresh"] == "true"
    client.post(f"{answer['Location']}measure/")
    assert {run.split for run in EvalRun.objects.filter(state="queued")} == {Split.HELD_OUT}
    desk.carry_out()
    candidate = Candidate.objects.get()
    page = page_of(client.get(answer["Location"]))
    assert f"Open candidate {candidate.pk}" in page
    page = page_of(client.get("/p/acme/training/fixes/"))
    assert f"/p/acme/training/fixes/{trial.pk}/" in page
    assert candidate.verdict == "eligible", candidate.report["decision"]["words"]
    assert "Eligible" in page
    here = f"/p/acme/training/fixes/{trial.pk}/"
    assert here in page_of(client.get("/p/acme/agents/assistant/versions/2/"))
    assert here in page_of(client.get(f"/p/acme/failures/buckets/{BUCKET}/"))
    page = page_of(client.get(f"/p/acme/promotions/candidates/{candidate.pk}/"))
    assert f"/p/acme/training/fixes/{trial.pk}/" in page, "its lineage"
    assert "/p/acme/agents/assistant/versions/2/against/1/" in page


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"draft-0-system_prompt": SYSTEM}, "No draft changes anything of assistant@1"),
        ({"draft-0-name": ""}, "This field is required"),
        ({"samples": "0"}, "greater than or equal to 1"),
        ({"draft-0-system_prompt": SYSTEM + " {held_out}"}, "Holds the whole request of a held-out or sealed task"),
    ],
)
def test_what_is_wrong_is_told_at_its_field(desk: Desk, sign_in: SignIn, changed: dict[str, str], problem: str) -> None:
    held_out = desk.task_set.tasks.filter(split=Split.HELD_OUT).first()
    assert held_out is not None
    texts = {name: text.replace("{held_out}", held_out.prompt) for name, text in changed.items()}
    answer = sign_in(desk.cast.builder).post(NEW, fields(desk, BETTER) | texts)
    assert answer.status_code == 422
    assert problem in page_of(answer)
    assert FixTrial.objects.count() == 0


@pytest.mark.parametrize("count", ["-1", "x", "99999999999", "٣", pytest.param("9" * 5_000, id="long")])
def test_a_count_that_is_none_breaks_nothing(desk: Desk, sign_in: SignIn, count: str) -> None:
    assert sign_in(desk.cast.builder).post(NEW, fields(desk, BETTER) | {"draft-count": count}).status_code == 422


def test_a_form_of_as_many_drafts_and_tools_as_may_be_is_taken(desk: Desk, sign_in: SignIn) -> None:
    filled = fields(desk, *[f"{SYSTEM} {place}" for place in range(MOST_DRAFTS)])
    most = {f"draft-{place}-tool-{n}": "" for place in range(MOST_DRAFTS) for n in range(len(TOOLS), MAX_TOOLS)}
    answer = sign_in(desk.cast.builder).post(NEW, filled | most | {"add": "prompt"})
    assert answer.status_code == 200


@pytest.mark.parametrize("data", [None, {}, {"add": "examples"}, {"draft-0-name": ""}])
def test_a_page_reads_what_is_measured_and_chooses_examples_once(
    desk: Desk, sign_in: SignIn, data: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def count(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*of: Any, **more: Any) -> Any:
            calls[name] += 1
            return function(*of, **more)

        return counted

    monkeypatch.setattr(fix_forms, "examples_for", count("choice", examples_for))
    monkeypatch.setattr(Measured, "__init__", count("measured", Measured.__init__))
    client = sign_in(desk.cast.builder)
    if data is None:
        client.get(NEW)
    else:
        client.post(NEW, fields(desk, SYSTEM) | data)
    assert calls == {"choice": 1, "measured": 1}


def test_a_held_out_failure_is_told_to_nobody_who_writes(
    desk: Desk, sign_in: SignIn, client: Client, key: Headers
) -> None:
    failure = desk.failure(note="The secret answer", corrected={"tool": "email.send", "arguments": {}})
    desk.build.task(Split.HELD_OUT, source=failure.trajectory)
    page = page_of(sign_in(desk.cast.builder).get(NEW))
    assert "The secret answer" not in page
    assert "Left out: 1 of a session that a held-out or sealed task was made of." in page
    evidence = client.get(f"/api/v1/buckets/{BUCKET}/evidence", headers=key("read")).json()
    assert (evidence["failures"], evidence["notes"], evidence["calls"]) == (0, [], [])
    assert (evidence["attempts_left_out"], evidence["sources_left_out"]) == (0, 1)
    assert evidence["left_out"].startswith("Left out: 1 of a session")


def test_without_a_set_or_a_bucket_there_is_nothing_to_try(desk: Desk, sign_in: SignIn) -> None:
    client = sign_in(desk.cast.builder)
    assert client.get("/p/acme/training/fixes/new/nowhere/").status_code == 404
    assert client.get(f"{NEW}?version=nobody@1").status_code == 404


def test_where_no_draft_gains_the_page_says_what_is_next(desk: Desk, sign_in: SignIn) -> None:
    trial = desk.start(draft("says not to", WORSE))
    desk.carry_out()
    client = sign_in(desk.cast.trainer)
    page = page_of(client.get(f"/p/acme/training/fixes/{trial.pk}/"))
    assert "No draft solves more of the training tasks than assistant@1" in page
    client.post(f"/p/acme/training/fixes/{trial.pk}/measure/")
    assert "Not measured: no draft solves more" in page_of(client.get(f"/p/acme/training/fixes/{trial.pk}/"))


def test_the_best_draft_leads_on_to_training_where_it_has_weights(desk: Desk, sign_in: SignIn) -> None:
    weights = Artifact.objects.create(digest="a" * 64, manifest={}, kind="model", size=2_800_000)
    desk.parent = desk.build.version(desk.parent.agent, weights=weights)
    trial = desk.start(draft("names", BETTER))
    desk.carry_out()
    best = trial.drafts.get().version
    address = f"/p/acme/training/fixes/{trial.pk}/"
    way = f"/p/acme/training/launch/?base={quote(str(best))}&amp;task_set={quote(str(desk.task_set))}"
    assert way not in page_of(sign_in(desk.cast.builder).get(address)), "only a trainer can launch"
    client = sign_in(desk.cast.trainer)
    assert way in page_of(client.get(address))
    assert client.get(way.replace("&amp;", "&")).context["form"].base == best


def test_the_ladders_page_says_what_was_tried_and_links_to_trying(desk: Desk, sign_in: SignIn) -> None:
    desk.failure()
    client = sign_in(desk.cast.trainer)
    query = {"base": str(desk.parent), "task_set": str(desk.task_set)}
    assert f"{NEW}?version=assistant%401&amp;task_set=" in page_of(client.get("/p/acme/training/launch/", query))


def test_a_program_does_the_same(desk: Desk, client: Client, key: Headers) -> None:
    desk.failure(corrected={"tool": "email.send", "arguments": {"to": "Ada", "subject": "x"}})
    read, build, train = key("read"), key("build"), key("train")
    evidence = client.get(f"/api/v1/buckets/{BUCKET}/evidence?agent=assistant", headers=read).json()
    assert evidence["calls"] == [["calendar.create_event", "email.send", 1]]
    name, version = desk.task_set.name, desk.task_set.version
    asked = f"/api/v1/task-sets/{name}/{version}/examples?version=assistant@1&bucket={BUCKET}&tokens=300"
    examples = client.get(asked, headers=read).json()
    assert examples["tokens"] <= 300
    assert examples["examples"][0]["text"] in examples["block"]
    body: dict[str, Any] = {
        "key": "00000000-0000-4000-8000-000000000001",
        "bucket": BUCKET,
        "version": {"name": "assistant"},
        "task_set": name,
        "samples": 2,
        "drafts": [
            {"name": "names", "system_prompt": BETTER},
            {"name": "shows", "system_prompt": f"{SYSTEM}\n\n{examples['block']}"},
            {"name": "tells", "descriptions": {"email.send": "Send one email."}},
            {"name": "cools", "sampling": {"temperature": 0.5}},
        ],
    }

    def post(path: str, content: Any, headers: dict[str, str]) -> Any:
        return client.post(f"/api/v1/{path}", json.dumps(content), content_type="application/json", headers=headers)

    answer = post("fix-trials", body, build)
    assert answer.status_code == 201, answer.content
    trial = answer.json()
    assert post("fix-trials", body, build).status_code == 200
    assert [one["changes"] for one in trial["drafts"]] == [["prompt"], ["prompt"], ["tool_change"], ["sampling"]]
    assert len(trial["drafts"][1]["examples"]) == len(examples["examples"])
    here = f"fix-trials/{trial['id']}"
    assert post(f"{here}/measure", {}, train).status_code == 409
    desk.carry_out()
    trial = client.get(f"/api/v1/{here}", headers=read).json()
    assert trial["is_over"]
    assert trial["best"] in ("names", "shows")
    assert trial["drafts"][0]["difference"]["mean"] == pytest.approx(0.5)
    assert post(f"{here}/measure", {}, train).status_code == 200
    desk.carry_out()
    trial = client.get(f"/api/v1/{here}", headers=read).json()
    assert trial["candidate"] == Candidate.objects.get().pk
    assert client.get("/api/v1/fix-trials", headers=read).json()["items"][0]["id"] == trial["id"]
    wrong = post("fix-trials", body | {"key": None, "drafts": [{"name": "x"}]}, build)
    assert (wrong.status_code, wrong.json()["detail"]) == (
        422,
        "drafts.0.system_prompt: changes nothing of assistant@5",
    )
    assert client.get(asked.replace("=300", "=0"), headers=read).status_code == 422
    assert client.get("/api/v1/buckets/nowhere/evidence", headers=read).status_code == 404
    changes = client.get("/api/v1/agents/assistant/versions/4/changes", headers=read).json()
    assert changes == [
        {
            "part": "Tool email.send: description",
            "change": "changed",
            "before": "Send an email.",
            "after": "Send one email.",
        }
    ]
    assert Version.objects.count() == 5


def test_the_ladder_of_a_version_with_weights_says_that_nothing_lighter_was_tried(room: Room, sign_in: SignIn) -> None:
    """And leads there."""
    Failure.objects.create(
        project=room.cast.project,
        trajectory=room.build.trajectory(version=room.base, agent=room.base.agent),
        decision=Decision.ADDED,
        bucket="wrong_tool",
        labelled_by=room.cast.reviewer,
    )
    query = {"base": str(room.base), "task_set": str(room.task_set)}
    page = page_of(sign_in(room.cast.trainer).get("/p/acme/training/launch/", query))
    assert "Nothing lighter was tried on this version yet." in page
    assert "/p/acme/training/fixes/new/wrong_tool/?version=assistant%401&amp;task_set=" in page
