"""Which versions a run's self-test asks, and that two which none has asked together are not compared."""

from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.agents.models import Agent, Version
from flywheel.edge.jobs import State
from flywheel.environments.models import Split, TaskSet, TaskSetMember
from flywheel.evals.comparisons.run_comparison import CannotCompare, check
from flywheel.evals.models import EvalRun
from flywheel.evals.serving import loaded_adapters, version_isolation
from flywheel.evals.serving.loaded_adapters import name_of
from tests.conftest import Build, Cast
from tests.evals.fake import adapted, finished, on_vllm, submit
from tests.pages import page_of

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
Ended = Callable[..., EvalRun]


@pytest.fixture
def task_set(build: Build) -> TaskSet:
    return build.task_set(held_out=2)


@pytest.fixture
def ended(build: Build, task_set: TaskSet) -> Ended:
    """`ended(version, *beside)`: an eval that is over, asked on vLLM after a self-test beside these."""

    def make(version: Version, *beside: Version, on: TaskSet | None = None, **found: Any) -> EvalRun:
        run = submit(build, on or task_set, version)
        run.state = State.SUCCEEDED
        return on_vllm(run, *beside, **found)

    return make


def test_two_that_no_self_test_has_asked_together_are_not_compared(build: Build, ended: Ended) -> None:
    first, second, third = (adapted(build, number) for number in (1, 2, 3))
    old, new = ended(first), ended(second)
    for candidate, baseline in ((new, old), (old, new)):
        with pytest.raises(CannotCompare, match=f"keeps {first} and {second} apart. Start an eval of {first} there"):
            check(candidate, baseline)
    ended(second, third)
    ended(third, first, second)
    ended(first, second, passed=False)
    EvalRun.objects.filter(pk=ended(first).pk).update(isolation={"arms": [name_of(first), name_of(second)]})
    with pytest.raises(CannotCompare, match="no self-test has shown"):
        check(new, old)
    for version, *beside in ((first, second), (second, third, first)):
        run = ended(version, *beside)
        assert version_isolation.of(new, old) == version_isolation.Apart(version_isolation.SelfTest(run.pk, 24)), (
            "the newest, of either"
        )
        check(new, old)


def test_what_nothing_can_mix_up_needs_no_self_test(build: Build, ended: Ended) -> None:
    one = adapted(build, 1)
    same = ended(adapted(build, 1, system_prompt="Only the prompt is another."))
    elsewhere = ended(adapted(build, 2, base=1))
    in_the_worker = ended(adapted(build, 2))
    in_the_worker.engine = ""
    for other in (ended(one), same, elsewhere, in_the_worker):
        assert version_isolation.of(ended(one), other) == version_isolation.Apart()


def test_the_bare_base_stands_under_one_name_in_every_test(build: Build, ended: Ended) -> None:
    base, prompted, one = adapted(build, None), adapted(build, None, system_prompt="Other."), adapted(build, 1)
    run = ended(one, base)
    for plain in (base, prompted):
        found = version_isolation.of(ended(plain), run).test
        assert found is not None
        assert found.eval == run.pk


def test_the_pages_and_the_api_say_which_test_vouches_or_what_to_run(
    build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch, sign_in: SignIn, client: Client, key: Any
) -> None:
    task_set = build.task_set(held_out=4)
    first, second = adapted(build, 1), adapted(build, 2)
    old, new = (on_vllm(finished(build, monkeypatch, task_set=task_set, version=one)) for one in (first, second))
    page, url = reverse("evals:compare", args=["acme", new.pk, old.pk]), f"/api/v1/evals/{new.pk}/against/{old.pk}"
    viewer, headers = sign_in(cast.viewer), key("read")
    said = page_of(viewer.get(page))
    assert "<b>Not compared.</b> No self-test has shown that the vLLM server keeps" in said
    assert "Put " not in said
    asked = f"version={quote(str(first))}&task_set={quote(str(task_set))}&split=train&samples=1&engine=vllm"
    way_out = f"{reverse('evals:new', args=['acme'])}?{asked}"
    assert way_out not in unescape(said)
    builder = sign_in(cast.builder)
    assert f'href="{way_out}">Evaluate {first}</a>' in unescape(page_of(builder.get(page)))
    form = builder.get(way_out).context["form"]
    assert [str(form[name].value()) for name in ("version", "samples", "engine")] == [str(first), "1", "vllm"]
    refused = client.get(url, headers=headers)
    TaskSetMember.objects.filter(split=Split.TRAIN).delete()
    assert "&split=held_out&samples=1" in unescape(page_of(builder.get(page))), "where none are for training"
    assert (refused.status_code, f"keeps {first} and {second} apart" in refused.json()["detail"]) == (409, True)

    on_vllm(new, first)
    said = page_of(viewer.get(page))
    assert "The vLLM server kept these two apart: self-test of" in said
    assert f'href="{reverse("evals:run", args=["acme", new.pk])}#isolation">eval {new.pk}</a>, 24 answers' in said
    assert client.get(url, headers=headers).json()["self_test"] == {"eval": new.pk, "answers": 24}
    said = page_of(viewer.get(reverse("evals:run", args=["acme", new.pk])))
    assert f"<dt>Beside</dt><dd><code>{name_of(first)}</code></dd>" in said


def test_a_test_that_is_under_way_has_no_card(build: Build, cast: Cast, sign_in: SignIn, ended: Ended) -> None:
    run = ended(adapted(build, 1))
    page = reverse("evals:run", args=["acme", run.pk])
    assert "Adapter isolation" in page_of(sign_in(cast.viewer).get(page))
    EvalRun.objects.filter(pk=run.pk).update(isolation={"arms": ["assistant-v1-00000001"]}, state=State.RUNNING)
    assert "Adapter isolation" not in page_of(sign_in(cast.viewer).get(page))


def test_the_table_of_versions_names_the_pairs_and_asks_once_for_all(
    build: Build, cast: Cast, sign_in: SignIn, ended: Ended, task_set: TaskSet, client: Client, key: Any
) -> None:
    versions = [adapted(build, number) for number in range(1, 7)]
    first, second, third, *more = versions
    ended(first)
    ended(second, first)
    ended(third, second)
    viewer, page = sign_in(cast.viewer), reverse("evals:grid", args=["acme", task_set.name, task_set.version])
    with CaptureQueriesContext(connection) as few:
        shown = viewer.get(page)
    assert shown.context["unshown"] == [(first, third)]
    assert f"<li>{first} and {third}</li>" in page_of(shown)
    api = client.get(f"/api/v1/task-sets/{task_set.name}/{task_set.version}/grid", headers=key("read"))
    assert api.json()["not_shown_apart"] == [[str(first), str(third)]]
    for version in more:
        ended(version, *versions)
    with CaptureQueriesContext(connection) as many:
        assert viewer.get(page).context["unshown"] == [(first, third)]
    assert len(many) <= len(few)
    ended(first, third)
    assert "No self-test" not in page_of(viewer.get(page))


def test_a_self_test_asks_what_its_version_is_likely_to_be_compared_with(
    build: Build, ended: Ended, task_set: TaskSet
) -> None:
    """What it was made from; then what no test has asked with it; of each the same tasks before others, the newest
    first."""
    parent, tested, older, newer, elsewhere, live, other_base, failed, worker, no_eval = (
        adapted(build, number, base=int(number == 7)) for number in range(1, 11)
    )
    one = adapted(build, 20, parent=parent)
    Agent.objects.update(live=live)
    ended(elsewhere, on=build.task_set(held_out=2))
    for version in (parent, older, newer, tested, live, other_base, adapted(build, None)):
        ended(version)
    EvalRun.objects.filter(pk=ended(failed).pk).update(state=State.FAILED)
    EvalRun.objects.filter(pk=ended(worker).pk).update(engine="")
    EvalRun.objects.filter(version=newer).update(state=State.RUNNING)
    ended(one, tested)
    run = ended(adapted(build, 20, parent=parent), tested)
    chosen = EvalRun.objects.select_related("version__agent__live").get(pk=run.pk)
    assert version_isolation.beside(chosen) == [parent, newer, older, elsewhere, tested]
    assert no_eval not in version_isolation.beside(chosen)


def test_it_is_bounded_and_each_further_eval_reaches_further(build: Build, ended: Ended) -> None:
    versions = [adapted(build, number) for number in range(1, 2 * loaded_adapters.BESIDE + 1)]
    for version in versions:
        ended(version)
    first = versions.pop(0)
    reached: list[Version] = []
    for _ in range(2):
        run = ended(first)
        chosen = version_isolation.beside(run)[: loaded_adapters.BESIDE]
        assert len(chosen) == loaded_adapters.BESIDE
        on_vllm(run, *chosen)
        reached += chosen
    assert set(reached) == set(versions)
    assert reached[: loaded_adapters.BESIDE] == versions[: -loaded_adapters.BESIDE - 1 : -1], "the newest first"
    # What its own last test asked is asked again when it is resumed: it is written over by the next one.
    assert version_isolation.beside(run)[: loaded_adapters.BESIDE] == chosen


def test_among_many_versions_each_is_reached_at_last(
    build: Build, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_isolation, "NAMED", 3)
    older, wanted, *newer = (adapted(build, number) for number in range(1, 9))
    for version in (older, wanted, *newer):
        ended(version)
    for _ in range(3):
        run = ended(older)
        on_vllm(run, *version_isolation.beside(run)[:3])
    assert version_isolation.between(older, wanted).test is not None
