"""The review page: what it shows, what its keys are, saving, undoing, two reviewers, and who may do what."""

import re
from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Failure, Recurrence
from flywheel.failures.queues import intake, open_queue, reservations
from flywheel.failures.queues.queue_definitions import Wanted, make
from flywheel.trajectories.models import Step, Trajectory
from tests.conftest import Build, Cast
from tests.pages import page_of
from workers.jobs.detection import detect_waiting

BROKEN = '{"tool": "email.send", "arguments": {"to": '
WRONG = '{"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "someday"}}'
HTMX = {"HX-Request": "true"}

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


def url(name: str, row: Trajectory | None = None, **query: str) -> str:
    args = ["acme", row.trace_id] if row else ["acme"]
    return reverse(f"failures:{name}", args=args) + (f"?{urlencode(query)}" if query else "")


@pytest.fixture
def row(build: Build) -> Trajectory:
    row = build.trajectory(answer=WRONG)
    detect_waiting()
    row.refresh_from_db()
    return row


def test_the_queue_opens_on_what_is_most_certain(cast: Cast, sign_in: SignIn, build: Build) -> None:
    rows = [build.trajectory(answer=BROKEN, prompt=f"Write to {name}") for name in ("Ines", "Bako")]
    detect_waiting()
    Trajectory.objects.filter(pk=rows[1].pk).update(proposed_score=0.99)
    page = page_of(sign_in(cast.reviewer).get(url("queue")))
    assert page.index("Write to Bako") < page.index("Write to Ines")
    assert "2 waiting" in page
    assert "No tool call" not in page


def test_what_showed_that_a_bucket_is_back_comes_first_in_its_queues(cast: Cast, sign_in: SignIn, build: Build) -> None:
    made = [("sure", 0.9), ("back one", 0.2), ("unsure", 0.3), ("back two", 0.4)]
    sure, one, unsure, two = (
        build.trajectory(name, proposed_bucket="wrong_tool", proposed_score=score) for name, score in made
    )
    Trajectory.objects.filter(pk=one.pk).update(proposed_bucket="format_error")
    handed = make(
        project=cast.project, actor=Actor(cast.builder), wanted=Wanted("tools", rule="detected", bucket="wrong_tool")
    )
    intake.add(queue=handed, keys=[sure.pk, two.pk], actor=Actor(cast.builder))
    found = Recurrence.objects.create(
        project=cast.project, bucket="wrong_tool", version=build.version(build.agent()), trajectories=[one.pk, two.pk],
        claim=0.02, failed=0.5, sessions=9, path=[],
    )  # fmt: skip
    bucket_lifecycle.reopen_by_watch(found)
    assert intake.put_first(found) == 1
    assert [item.trajectory for item in reservations.free_for(handed, cast.reviewer, 9)] == [two, sure]

    filters = open_queue.Filters(bucket="wrong_tool")
    order = [open_queue.first(cast.project, filters)]
    for _ in range(4):
        assert order[-1] is not None
        order.append(open_queue.next_after(cast.project, filters, order[-1]))
    assert order == [two, one, sure, unsure, two]
    for place, item in enumerate([two, one, sure, unsure]):
        shown = open_queue.around(cast.project, filters, item)
        assert (shown["items"], shown["count"]) == ([two, one, sure, unsure], 4)
        assert shown["previous"] == (order[place - 1] if place else None)
        assert shown["next"] == order[place + 1]
    page = page_of(sign_in(cast.reviewer).get(url("queue", bucket="wrong_tool")))
    assert page.index("back two") < page.index("back one") < page.index("sure")
    bucket_lifecycle.answer(recurrence=found, actor=Actor(cast.reviewer), is_same=True)
    assert open_queue.first(cast.project, filters) == sure, "a person has looked at it"


def test_keys_of_the_page_are_the_shortcuts_of_the_buckets(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    page = page_of(sign_in(cast.builder).get(url("review", row)))
    radios = re.findall(r'name="bucket" value="(\w+)"[^>]* data-key="(.)"', page)
    assert dict(radios) == {key: bucket.shortcut for key, bucket in BUCKETS.items()}
    others = re.findall(r'data-key="([^"]+)"[^>]*data-key-scope="(?:Review|Correction)"', page)
    assert {"y", "p", "s", "c", "shift+a", "shift+s", "shift+w", "shift+r", "shift+q", "n", "mod+Enter"} <= set(others)
    every = [*dict(radios).values(), *others]
    assert len(every) == len(set(every)), "two handlers on one key"


def test_the_failing_step_is_marked_and_the_agents_call_is_prefilled(
    cast: Cast, sign_in: SignIn, row: Trajectory
) -> None:
    page = page_of(sign_in(cast.reviewer).get(url("review", row)))
    assert re.search(r'class="turn tool failing" id="step-s2"', page)
    assert '<option value="s2" selected>3 calendar.create_event</option>' in page
    assert 'name="arg.person" id="arg.person" value="Bako"' in page
    assert "&#x27;someday&#x27; is not one of" in page


def test_saving_answers_with_the_next_item_and_its_address(cast: Cast, sign_in: SignIn, build: Build) -> None:
    first, second = build.trajectory(answer=BROKEN, prompt="Write to Ines"), build.trajectory(answer=BROKEN)
    detect_waiting()
    client = sign_in(cast.reviewer)
    sent = {"bucket": "format_error", "step": "s2", "seen": "0"}
    answer = client.post(url("label", second), sent, headers=HTMX)
    assert answer.status_code == 200
    assert answer["HX-Push-Url"] == url("review", first)
    assert 'id="desk"' in page_of(answer)
    assert "<html" not in page_of(answer)
    plain = client.post(url("label", first), sent)
    assert (plain.status_code, plain["Location"]) == (302, url("queue"))
    assert "Nothing waits for review" in page_of(client.get(plain["Location"]))


def test_filters_stay_in_the_address_from_item_to_item(cast: Cast, sign_in: SignIn, build: Build) -> None:
    first, second = build.trajectory(answer=BROKEN), build.trajectory(answer=BROKEN)
    build.trajectory(answer=WRONG)
    detect_waiting()
    query = {"bucket": "format_error", "order": "oldest"}
    answer = sign_in(cast.reviewer).post(url("label", first, **query), {"quick": "confirm", "seen": "0"}, headers=HTMX)
    assert answer["HX-Push-Url"] == url("review", second, **query)
    assert "1 waiting" in page_of(answer)


def test_an_unknown_filter_is_said_and_left_out(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    page = page_of(sign_in(cast.reviewer).get(url("queue", bucket="weird", version="none@x")))
    assert "bucket: &#x27;weird&#x27; is unknown" in page


@pytest.mark.parametrize(
    ("quick", "decision", "bucket"), [("confirm", "confirmed", "wrong_arguments"), ("nothing", "rejected", "")]
)
def test_one_key_confirms_or_rejects(
    cast: Cast, sign_in: SignIn, row: Trajectory, quick: str, decision: str, bucket: str
) -> None:
    sign_in(cast.reviewer).post(url("label", row), {"quick": quick, "bucket": "wrong_tool", "step": "s2", "seen": "0"})
    failure = Failure.objects.get()
    assert (failure.decision, failure.bucket, failure.labelled_by) == (decision, bucket, cast.reviewer)


def test_a_correction_is_saved_from_the_fields(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    sent = {"bucket": "wrong_arguments", "seen": "0", "correct": "1", "tool": "calendar.create_event", "was": "form"}
    client = sign_in(cast.reviewer)
    bad = client.post(url("label", row), {**sent, "arg.person": "Bako", "arg.day": "someday"}, headers=HTMX)
    assert bad.status_code == 422
    assert bad["HX-Retarget"] == "#decision-pane"
    assert "The corrected action is not valid yet" in page_of(bad)
    assert not Failure.objects.exists()
    client.post(url("label", row), {**sent, "arg.person": "Bako", "arg.day": "friday"}, headers=HTMX)
    assert Failure.objects.get().corrected == {
        "tool": "calendar.create_event",
        "arguments": {"person": "Bako", "day": "friday"},
    }


def test_a_correction_that_was_begun_does_not_keep_anybody_from_finding_nothing_wrong(
    cast: Cast, sign_in: SignIn, row: Trajectory
) -> None:
    begun = {"correct": "1", "tool": "calendar.create_event", "was": "form", "arg.day": "someday"}
    sign_in(cast.reviewer).post(url("label", row), {"quick": "nothing", "seen": "0", **begun}, headers=HTMX)
    found = Failure.objects.get()
    assert (found.decision, found.corrected) == ("rejected", None)


def test_an_unticked_correction_is_not_saved(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    sent = {"bucket": "wrong_arguments", "seen": "0", "tool": "email.send", "arg.to": "Bako"}
    sign_in(cast.reviewer).post(url("label", row), sent)
    assert Failure.objects.get().corrected is None


def test_what_is_refused_comes_back_with_what_was_written(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    answer = sign_in(cast.reviewer).post(url("label", row), {"note": "my words", "seen": "0"}, headers=HTMX)
    page = page_of(answer)
    assert answer.status_code == 422
    assert "Choose a category" in page
    assert ">my words</textarea>" in page
    whole = sign_in(cast.reviewer).post(url("label", row), {"note": "my words", "seen": "0"})
    assert whole.status_code == 422
    assert ">my words</textarea>" in page_of(whole)


def test_the_second_reviewer_sees_the_first_and_can_go_above(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    first = decide(trajectory=row, actor=Actor(cast.builder), bucket="wrong_tool")
    client = sign_in(cast.reviewer)
    sent = {"bucket": "format_error", "note": "cut", "seen": "0"}
    page = client.post(url("label", row), sent, headers=HTMX)
    assert page.status_code == 422
    text = page_of(page)
    assert "builder decided wrong tool since you opened this" in text
    assert f'name="seen" id="seen" value="{first.pk}"' in text
    assert ">cut</textarea>" in text
    client.post(url("label", row), {**sent, "seen": str(first.pk)}, headers=HTMX)
    assert Failure.objects.get(current=True).bucket == "format_error"


def test_a_double_click_makes_one_decision(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    client = sign_in(cast.reviewer)
    for _ in range(2):
        answer = client.post(url("label", row), {"bucket": "wrong_tool", "note": "once", "seen": "0"}, headers=HTMX)
        assert answer.status_code == 200
    assert Failure.objects.count() == 1


def test_undo_takes_back_the_reviewers_own_last_decisions_one_by_one(cast: Cast, sign_in: SignIn, build: Build) -> None:
    rows = [build.trajectory(answer=BROKEN) for _ in range(2)]
    detect_waiting()
    client = sign_in(cast.reviewer)
    for row in rows:
        client.post(url("label", row), {"bucket": "format_error", "seen": "0"}, headers=HTMX)
    for row in reversed(rows):
        page = page_of(client.get(url("queue")))
        found = re.search(r'action="([^"]+/undo/[^"]*)"[\s\S]*?name="seen" value="(\d+)"', page)
        assert found is not None
        assert row.trace_id in found[1]
        answer = client.post(found[1], {"seen": found[2]}, headers=HTMX)
        assert answer["HX-Push-Url"] == url("review", row)
        assert "Undone." in page_of(answer)
    assert not Failure.objects.filter(current=True).exists()
    assert 'data-key="u"' not in page_of(client.get(url("queue")))


def test_undo_of_what_somebody_decided_above_takes_nothing_back(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    mine = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    theirs = decide(trajectory=row, actor=Actor(cast.builder), bucket="format_error")
    answer = sign_in(cast.reviewer).post(url("undo", row), {"seen": str(mine.pk)}, headers=HTMX)
    assert "Nothing was undone: builder decided broken format" in page_of(answer)
    theirs.refresh_from_db()
    assert theirs.current


def test_the_preview_checks_while_one_types(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    sent = {"tool": "calendar.create_event", "was": "form", "editor": "form", "arg.person": "Bako", "arg.day": "friday"}
    page = page_of(sign_in(cast.reviewer).post(url("correction", row), sent, headers=HTMX))
    assert "fits the schema" in page
    assert "<del>someday</del><ins>friday</ins>" in page
    assert not Failure.objects.exists()


def test_a_required_text_that_is_left_empty_does_not_fit(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    sent = {"tool": "email.send", "was": "form", "editor": "form", "arg.to": "Bako", "arg.subject": ""}
    client = sign_in(cast.reviewer)
    page = page_of(client.post(url("correction", row), sent, headers=HTMX))
    assert "fits the schema" not in page
    assert "&#x27;subject&#x27; is a required property" in page
    assert 'name="empty.subject" value="1"> Empty text on purpose' in page
    page = page_of(client.post(url("correction", row), {**sent, "empty.subject": "1"}, headers=HTMX))
    assert "fits the schema" in page
    assert 'name="empty.subject" value="1" checked' in page


def test_what_an_agent_wrote_stays_text(cast: Cast, sign_in: SignIn, build: Build) -> None:
    hostile = "<script>alert(1)</script>\u202e"
    row = build.trajectory(prompt=hostile, answer=f'{{"tool": "{hostile}", "arguments": {{}}}}')
    detect_waiting()
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool", note="<script>alert(2)</script>")
    for name in ("review", "panel"):
        page = page_of(sign_in(cast.reviewer).get(url(name, row)))
        assert "<script>alert" not in page
        assert "\u202e" not in page


def test_a_long_trajectory_shows_the_window_of_the_failing_step(cast: Cast, sign_in: SignIn, build: Build) -> None:
    row = build.trajectory(answer=BROKEN)
    steps = [
        Step(
            trajectory=row,
            span_id=f"x{n}",
            position=n,
            kind="assistant",
            body={"output": [{"role": "assistant", "content": f"turn {n}"}]},
        )
        for n in range(3, 2000)
    ]
    Step.objects.bulk_create(steps)
    Trajectory.objects.filter(pk=row.pk).update(step_count=2000)
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="bad_planning", step="x1000")
    page = page_of(sign_in(cast.reviewer).get(url("review", row)))
    assert "turn 1000<" in page
    assert "turn 500<" not in page
    assert "of 2" in page
    assert "Open the whole trajectory" in page


def test_the_other_windows_of_a_long_trajectory_are_read_at_both_desks(
    cast: Cast, sign_in: SignIn, build: Build
) -> None:
    row = build.trajectory(answer=BROKEN)
    body = {"output": [{"role": "assistant", "content": "a turn"}]}
    Step.objects.bulk_create(
        Step(trajectory=row, span_id=f"x{n}", position=n, kind="assistant", body=body) for n in range(3, 450)
    )
    Trajectory.objects.filter(pk=row.pk).update(step_count=450)
    queue = make(project=cast.project, actor=Actor(cast.builder), wanted=Wanted("mine"))
    intake.add(queue=queue, keys=[row.pk], actor=Actor(cast.builder))
    client = sign_in(cast.reviewer)
    at_item = reverse("failures:item", args=["acme", queue.pk, queue.items.get().pk])
    for address in (url("review", row, order="newest"), f"{at_item}?"):

        def shown(start: str, address: str = address) -> tuple[list[str], list[str]]:
            page = page_of(client.get(f"{address}&start={start}"))
            assert f'href="{address}&amp;start=' in page, "with the filters"
            links = re.findall(r'&amp;start=(\d+)" hx-get', page)
            return re.findall(r"Steps (\S+) of", page), links

        assert shown("0") == (["1–200"], ["200"])
        assert shown("300") == (["201–400"], ["0", "400"])
        assert shown("99999") == (["401–450"], ["200"])
        assert shown("x") == (["1–200"], ["200"])
        assert '<option value="x300"' in page_of(client.get(f"{address}&start=200"))


def test_a_failing_step_of_another_window_stays_chosen(cast: Cast, sign_in: SignIn, build: Build) -> None:
    row = build.trajectory(answer=BROKEN)
    body = {"output": [{"role": "assistant", "content": "a turn"}]}
    Step.objects.bulk_create(
        Step(trajectory=row, span_id=f"x{n}", position=n, kind="assistant", name="<b>draft", body=body)
        for n in range(3, 450)
    )
    Trajectory.objects.filter(pk=row.pk).update(step_count=450)
    row.refresh_from_db()
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool", step="x300")
    client = sign_in(cast.reviewer)

    def chosen(start: str) -> list[tuple[str, str]]:
        page = page_of(client.get(url("review", row, order="newest", start=start)))
        return re.findall(r'<option value="(x\d*|)" selected>(.*?)</option>', page)

    assert chosen("0") == [("x300", "301 &lt;b&gt;draft, not shown here")]
    assert chosen("200") == [("x300", "301 agent")]
    row.steps.filter(span_id="x300").delete()
    assert chosen("0") == []


def test_who_may_look_and_who_may_decide(cast: Cast, sign_in: SignIn, row: Trajectory) -> None:
    for name in ("queue", "index"):
        assert sign_in(cast.viewer).get(url(name)).status_code == 200
        assert sign_in(cast.stranger).get(url(name)).status_code == 404
    for name in ("review", "panel"):
        assert sign_in(cast.viewer).get(url(name, row)).status_code == 200
        assert sign_in(cast.stranger).get(url(name, row)).status_code == 404
    for name in ("label", "undo", "correction"):
        assert sign_in(cast.viewer).post(url(name, row)).status_code == 403
        assert sign_in(cast.stranger).post(url(name, row)).status_code == 404
        assert sign_in(cast.reviewer).get(url(name, row)).status_code == 405
    page = page_of(sign_in(cast.viewer).get(url("review", row)))
    assert 'id="decision"' not in page


def test_a_trajectory_of_another_project_is_not_there(cast: Cast, sign_in: SignIn, build: Build) -> None:
    other = build.trajectory(project=cast.elsewhere)
    assert sign_in(cast.reviewer).get(url("review", other)).status_code == 404
    assert sign_in(cast.reviewer).post(url("label", other), {"bucket": "wrong_tool"}).status_code == 404


def test_the_page_costs_the_same_for_one_item_and_for_many(
    cast: Cast, sign_in: SignIn, build: Build, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for _ in range(60):
        build.trajectory(answer=BROKEN)
    detect_waiting()
    client = sign_in(cast.builder)
    client.get(url("queue"))
    with django_assert_max_num_queries(48):  # type: ignore[attr-defined]
        client.get(url("queue"))


@pytest.mark.parametrize(
    ("corrected", "words"),
    [
        ({"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}, "<ins>friday</ins>"),
        ({"refuse": ""}, "help with that."),
        ({"avoid": ["calendar.create_event"], "text": "Done already."}, "Done already."),
    ],
)
def test_the_corrected_trajectory_stands_beside_the_recorded_one(
    cast: Cast, sign_in: SignIn, row: Trajectory, corrected: dict[str, object], words: str
) -> None:
    client = sign_in(cast.viewer)
    assert "No corrected action yet" in client.get(url("corrected", row)).content.decode()
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool", step="s2", corrected=corrected)
    page = page_of(client.get(url("corrected", row)))
    shared, _, after = page.partition("What happened")
    recorded, _, wanted = after.partition("What should have happened")
    assert "System prompt" in shared
    assert "someday" in recorded
    assert "someday" not in shared
    assert words in wanted
    assert url("corrected", row) in page_of(client.get(url("review", row)))
    assert url("corrected", row) in page_of(client.get(url("panel", row)))
