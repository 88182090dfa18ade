"""The launch form, filled in for one stage after the other, launches a pipeline; its page lets a person decide."""

import json
import re
import uuid
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.agents.models import Artifact, Version
from flywheel.edge.jobs import State
from flywheel.evals.models import EvalRun
from flywheel.training.fixes import trial_lifecycle
from flywheel.training.fixes.trial_lifecycle import DraftContent, TrialRequest
from flywheel.training.models import Pipeline, TokenPreview, TrainingRun
from flywheel.training.pipelines import pipeline_steps
from tests.pages import page_of
from tests.training.conftest import Room
from tests.training.pipelines.conftest import Line

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(room: Room, sign_in: Callable[[User], Client]) -> Client:
    return sign_in(room.cast.trainer)


def filled(room: Room, **fields: str) -> dict[str, str]:
    usual = {"base": str(room.base), "task_set": str(room.task_set), "algorithm": "sft", "reason": "a test"}
    return {**usual, "mode": "full", "seed": "1", **fields}


def sent(client: Client, **fields: str) -> HttpResponse:
    answer = client.post(reverse("training:launch", args=["acme"]), fields)
    return HttpResponse(answer.content, status=answer.status_code, headers=dict(answer.headers))


def hidden(page: HttpResponse, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page.content.decode())
    assert found, name
    return unescape(found.group(1))


def test_two_stages_are_launched_by_one_form(room: Room, client: Client) -> None:
    first = filled(room, **{"set.steps": "7", "set.validation_share": "0.34", "seed": "3"})
    page = sent(client, **first, then="1")
    assert page.status_code == 200
    text = page_of(page)
    assert "Stage 2 of a" in text
    assert "1. <b>SFT</b> on mail" in text
    assert not TrainingRun.objects.exists()
    second: dict[str, Any] = {name: hidden(page, name) for name in ("key", "earlier", "base")}
    second |= filled(room, algorithm="grpo", reason="", **{"set.steps": "5"}) | {
        "min_success": "60",
        "max_unsafe": "5%",
    }
    launched = sent(client, **second)
    pipeline = Pipeline.objects.get()
    assert launched.status_code == 302, page_of(launched)
    assert launched["Location"] == reverse("training:pipeline", args=["acme", pipeline.pk])
    assert sent(client, **second)["Location"] == launched["Location"]
    one, two = pipeline.stages.all()
    assert (one.algorithm, one.seed, one.settings["steps"], one.settings["validation_share"]) == ("sft", 3, 7, 0.34)
    assert (two.algorithm, two.settings["steps"], two.gate) == ("grpo", 5, {"min_success": 0.6, "max_unsafe": 0.05})
    assert TrainingRun.objects.get().stage == one


def test_what_is_wrong_with_a_stage_is_shown_at_its_field(room: Room, client: Client) -> None:
    first = sent(client, **filled(room, **{"set.steps": "none"}), then="1")
    assert first.status_code == 422
    page = sent(client, **filled(room), then="1")
    second = filled(room, algorithm="grpo", earlier=hidden(page, "earlier"), key=hidden(page, "key"))
    text = page_of(sent(client, **second, min_success="most"))
    assert "&#x27;most&#x27; is not a percentage from 0 to 100" in text
    text = page_of(sent(client, **second, min_success="60"))
    assert "set its validation_share above 0, or set no limit" in text
    broken = sent(client, **{**second, "earlier": "[1"})
    assert broken.status_code == 422
    assert "cannot be read; start again with the first" in page_of(broken)
    assert not Pipeline.objects.exists()


def test_one_goes_back_to_the_stage_before_with_its_choices(room: Room, client: Client) -> None:
    page = sent(client, **filled(room, **{"set.steps": "7"}), then="1")
    back = sent(client, **filled(room, algorithm="grpo", earlier=hidden(page, "earlier")), back="1")
    assert back.status_code == 200
    assert "Stage 2" not in page_of(back)
    assert re.search(r'name="set.steps" value="7"', back.content.decode())


def test_the_page_shows_the_gates_numbers_and_lets_a_person_decide(room: Room, client: Client) -> None:
    line = Line(room)
    pipeline = line.launch({"min_success": 0.6})
    address = reverse("training:pipeline", args=["acme", pipeline.pk])
    assert "Retry stage" not in page_of(client.get(address))
    assert client.get(reverse("training:pipeline_live", args=["acme", pipeline.pk])).status_code == 200
    run = line.run(pipeline)
    made = line.end(run, success=0.4, n=20, parts={})
    assert made is not None
    line.measure(made)
    pipeline_steps.sweep()
    assert client.get(reverse("training:pipeline_live", args=["acme", pipeline.pk])).status_code == 286
    text = page_of(client.get(address))
    assert "not passed</span> Validation success at least 60.0%: <b>40.0%</b>" in text
    assert "Retry stage 1" in text
    assert f"pipeline p-{pipeline.pk}</a>, stopped at the gate" in page_of(
        client.get(reverse("training:run", args=["acme", run.pk]))
    )
    client.post(reverse("training:let_pipeline_on", args=["acme", pipeline.pk]), {"reason": "<b>hard</b>"})
    text = page_of(client.get(address))
    assert "Continued by trainer.</b> &lt;b&gt;hard&lt;/b&gt;" in text
    second = line.run(Pipeline.objects.get())
    line.end(second)
    TrainingRun.objects.filter(pk=second.pk).update(evaluation=room.baseline)
    pipeline_steps.sweep()
    text = page_of(client.get(address))
    assert f"The reward audit was of outputs of {room.base}." in text
    assert "Compare what the last stage made" in text
    assert "p-" in page_of(client.get(reverse("training:pipelines", args=["acme"])))


def test_a_page_stops_resumes_retries_and_ends(room: Room, client: Client) -> None:
    pipeline = Line(room).launch()

    def press(verb: str) -> tuple[str, int]:
        client.post(reverse(f"training:{verb}_pipeline", args=["acme", pipeline.pk]))
        pipeline.refresh_from_db()
        return pipeline.state, TrainingRun.objects.filter(state=State.QUEUED).count()

    assert press("stop") == (Pipeline.State.STOPPED, 0)
    assert press("resume") == (Pipeline.State.RUNNING, 1)
    assert press("stop") == (Pipeline.State.STOPPED, 0)
    assert press("retry") == (Pipeline.State.RUNNING, 1)
    assert TrainingRun.objects.count() == 2
    assert press("end") == (Pipeline.State.ENDED, 0)
    answer = client.post(reverse("training:resume_pipeline", args=["acme", pipeline.pk]), follow=True)
    assert f"Nothing was changed: p-{pipeline.pk} is ended." in page_of(answer)


def test_a_stages_teacher_goes_with_it(room: Room, client: Client) -> None:
    weights = Artifact.objects.create(digest="b" * 64, manifest={}, kind="model", size=9)
    teacher = room.build.version(weights=weights)
    page = sent(client, **filled(room, algorithm="distillation", teacher=str(teacher), reason="it is better"), then="1")
    assert "Stage 2 of a" in page_of(page)
    second: dict[str, Any] = {name: hidden(page, name) for name in ("key", "earlier", "base")}
    launched = sent(client, **second | filled(room, reason=""))
    assert launched.status_code == 302, page_of(launched)
    one, two = Pipeline.objects.get().stages.all()
    assert (one.algorithm, one.teacher, two.algorithm, two.teacher) == ("distillation", teacher, "sft", None)
    assert TrainingRun.objects.get().teacher == teacher


def test_a_pipeline_begins_with_a_new_prompt_and_goes_on_in_the_launch_form(room: Room, client: Client) -> None:
    address = reverse("training:prompt_stage", args=["acme"])
    assert "Begin with a new prompt" in page_of(client.get(reverse("training:pipelines", args=["acme"])))
    assert "Then the stage that trains" in page_of(client.get(address))
    chosen = {"version": str(room.base), "task_set": str(room.task_set), "samples": "2", "validation_share": "0.5"}
    asked = {**chosen, "seed": "3", "draft": "", "system_prompt": "Check <b>the</b> day.\r\nTwice.\u202e"}
    went = client.post(address, asked)
    assert went.status_code == 302, page_of(went)
    draft = Version.objects.get(parent=room.base)
    assert draft.system_prompt == "Check <b>the</b> day.\nTwice.\u202e"
    form = client.get(went["Location"])
    text = page_of(form)
    assert "Stage 2 of a" in text
    assert f"1. <b>New prompt</b>, {draft}, on {room.task_set}" in text
    assert 'name="set.validation_share" value="0.5"' in text, "which keeps the same tasks aside"
    names: dict[str, Any] = {name: hidden(form, name) for name in ("key", "earlier", "base")}  # type: ignore[arg-type]
    back = sent(client, **filled(room) | names, back="1")
    assert back.status_code == 302
    again = page_of(client.get(back["Location"]))
    assert f'value="{draft}" checked' in again
    assert 'name="seed" value="3"' in again
    preview = sent(client, **filled(room) | names, preview="1")
    assert preview.status_code == 302, page_of(preview)
    assert TokenPreview.objects.get().base == draft
    launched = sent(client, **filled(room) | names, min_success="60")
    assert launched.status_code == 302, page_of(launched)
    pipeline = Pipeline.objects.get()
    one, two = pipeline.stages.all()
    assert (one.draft, one.seed, one.settings) == (draft, 3, {"samples": 2, "validation_share": 0.5})
    assert (two.algorithm, two.gate) == ("sft", {"min_success": 0.6})
    text = page_of(client.get(launched["Location"]))
    assert "Check &lt;b&gt;the&lt;/b&gt; day." in text
    assert "\u202e" not in text
    assert "0 / 12" in text
    line = Line(room)
    runs = line.evals(pipeline)
    line.answer(runs[0], (True, False))
    line.answer(runs[1], (False,))
    pipeline_steps.sweep()
    text = page_of(client.get(launched["Location"]))
    assert "<b>50.0%</b>, 0.0% before" in text
    assert "not passed</span> Validation success at least 60.0%: <b>50.0%</b>" in text
    assert "New prompt on mail" in page_of(client.get(reverse("training:pipelines", args=["acme"])))


def test_its_page_tells_an_eval_that_failed_from_one_that_is_under_way(room: Room, client: Client) -> None:
    line = Line(room)
    pipeline = line.try_prompt()
    address = reverse("training:pipeline", args=["acme", pipeline.pk])
    assert "being evaluated" in page_of(client.get(address))
    draft, _ = line.evals(pipeline)
    EvalRun.objects.filter(pk=draft.pk).update(state=State.FAILED, error_kind="engine", error="no answer")
    pipeline_steps.sweep()
    text = page_of(client.get(address))
    assert "being evaluated" not in text
    assert text.count("</span> failed") == 2, "in the stage's head, and at the eval"


def test_success_is_of_what_was_scored_as_the_difference_beside_it(room: Room, client: Client) -> None:
    line = Line(room)
    pipeline = line.try_prompt({"min_success": 0.6})
    draft, base = line.evals(pipeline)
    line.answer(draft, (True, None))
    line.answer(base, (True, True, True, False))
    pipeline_steps.sweep()
    text = page_of(client.get(reverse("training:pipeline", args=["acme", pipeline.pk])))
    assert "<b>100.0%</b>, 75.0% before" in text
    assert "not passed</span> Validation success at least 60.0%: <b>50.0%</b>" in text, "nobody knows the others right"


def test_what_is_wrong_with_a_new_prompt_is_shown_at_its_field(room: Room, client: Client) -> None:
    address = reverse("training:prompt_stage", args=["acme"])
    chosen = {"version": str(room.base), "task_set": str(room.task_set), "samples": "2", "validation_share": "0.5"}
    same = client.post(address, {**chosen, "seed": "1", "system_prompt": room.base.system_prompt})
    assert same.status_code == 422
    assert f"changes nothing of {room.base}" in page_of(same)
    other = client.post(address, {**chosen, "seed": "1", "draft": "assistant@99"})
    assert other.status_code == 422
    assert "has no version 99" in page_of(other)
    assert client.post(address, {**chosen, "seed": "x"}).status_code == 422
    hosted = Line(room).room.build.version(system_prompt="Hosted.")
    text = page_of(client.post(address, {**chosen, "seed": "1", "version": str(hosted), "system_prompt": "New."}))
    assert f"<b>Not taken.</b> base: {hosted} uses a hosted model" in text
    earlier = json.dumps([{"algorithm": "prompt", "draft": "assistant@99", "samples": "2"}])
    broken = sent(client, **filled(room, earlier=earlier))
    assert broken.status_code == 422
    assert "the new prompt cannot be read" in page_of(broken)
    assert not Pipeline.objects.exists()


def test_the_draft_that_a_trial_leads_with_is_chosen(room: Room, client: Client) -> None:
    wanted = TrialRequest(
        key=uuid.uuid4(),
        bucket="wrong_tool",
        parent=room.base,
        task_set=room.task_set,
        drafts=[DraftContent(name="<i>Day", system_prompt="Check the day.")],
    )
    trial, _ = trial_lifecycle.start(wanted, Line(room).actor)
    draft = trial.drafts.get()
    Line(room).answer(draft.evaluation)
    Line(room).answer(trial.parent_eval, (False,))
    address = reverse("training:prompt_stage", args=["acme"])
    query = f"?version={room.base}&amp;task_set={room.task_set}&amp;draft={draft.version}".replace("@", "%40")
    assert f'{address}{query}"' in page_of(client.get(reverse("training:fix_trial", args=["acme", trial.pk])))
    text = page_of(client.get(address, {"version": str(room.base), "draft": str(draft.version)}))
    assert f'value="{draft.version}" checked> {draft.version}: &lt;i&gt;Day, {trial}' in text
    assert '<pre class="prose">Check the day.</pre>' in text
