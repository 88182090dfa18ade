"""The page that shows what will be learnt: in tokens, with what counts in the loss, and harmless."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.edge.jobs import State
from flywheel.training.datasets.dataset_builder import build
from flywheel.training.models import Dataset, TokenPreview
from tests.pages import page_of
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


def span(state: str, *texts: str, hidden: int = 0) -> dict[str, Any]:
    tokens = [[number, text, text.startswith("<|")] for number, text in enumerate(texts)]
    return {"state": state, "count": len(texts) + hidden, "tokens": tokens, "hidden": hidden, "last": []}


def part(name: str, *spans: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "tokens": 6, "learnt": 2, "cut": 1, "spans": list(spans)}


MADE: dict[str, Any] = {
    "rows": 6,
    "of": 6,
    "left_out": 1,
    "cut": 1,
    "tokens": 600,
    "learnt": 60,
    "median": 90,
    "longest": 130,
    "limit": 120,
    "limited_by": "max_length (120)",
    "answer": None,
    "examples": [
        {
            "row": 1,
            "task": "t-1",
            "left_out": "",
            "shared": [],
            "sequences": [
                part(
                    "",
                    span("read", "<|user|>", "remind <script>", "\n", "\u202e", hidden=1200),
                    span("learnt", "yes", "<|end|>"),
                    span("cut", " more"),
                )
            ],
        },
        {
            "row": 2,
            "task": "t-2",
            "left_out": "its prompt alone reaches max_length (120)",
            "shared": [],
            "sequences": [part("", span("cut", "all"))],
        },
    ],
}


@pytest.fixture
def rows(room: Room) -> Dataset:
    return build(name="rows", kind="sft", task_set=room.task_set, actor=Actor(room.cast.trainer), version=room.base)


@pytest.fixture
def trainer(room: Room, sign_in: SignIn) -> Client:
    return sign_in(room.cast.trainer)


def chosen(trainer: Client, room: Room) -> TokenPreview:
    page = page_of(trainer.get("/p/acme/training/datasets/rows/1/"))
    assert '<a class="btn" href="/p/acme/training/datasets/rows/1/tokens/">What will be learnt</a>' in page
    sent = {"base": room.base.pk, "algorithm": "sft"}
    response = trainer.post("/p/acme/training/datasets/rows/1/tokens/", sent)
    job = TokenPreview.objects.get()
    assert response.headers["Location"] == f"/p/acme/training/previews/{job.pk}/"
    return job


def made(trainer: Client, room: Room, **result: Any) -> str:
    job = chosen(trainer, room)
    TokenPreview.objects.update(state=State.SUCCEEDED, result=MADE | result)
    return page_of(trainer.get(f"/p/acme/training/previews/{job.pk}/"))


def test_while_a_worker_makes_it_the_page_says_so(trainer: Client, room: Room, rows: Dataset) -> None:
    job = chosen(trainer, room)
    assert "waiting for a worker" in page_of(trainer.get(f"/p/acme/training/previews/{job.pk}/"))
    TokenPreview.objects.update(state=State.FAILED, error="no <chat> template")
    page = page_of(trainer.get(f"/p/acme/training/previews/{job.pk}/"))
    assert "no &lt;chat&gt; template" in page
    assert "Try again" in page
    assert "rows" in page_of(trainer.get("/p/acme/training/datasets/rows/1/tokens/")), "it is among the earlier ones"


def test_what_is_learnt_is_told_by_more_than_its_colour(trainer: Client, room: Room, rows: Dataset) -> None:
    page = made(trainer, room)
    assert (
        '<mark><span class="sr-only">learnt: </span><i title="0">yes</i><b title="1">&lt;|end|&gt;</b></mark>' in page
    )
    assert '<del><span class="sr-only">cut off: </span><i title="0"> more</i>' in page
    assert "… 1,200 more …" in page
    assert "Row 2" in page
    assert "Its prompt alone reaches max_length (120)" in page


def test_hostile_tokens_are_shown_and_do_nothing(trainer: Client, room: Room, rows: Dataset) -> None:
    page = made(trainer, room)
    assert "remind &lt;script&gt;" in page
    assert "remind <script>" not in page
    assert "⟨U+202E⟩" in page
    assert "\u202e" not in page
    assert "↵" in page


def test_pairs_stand_side_by_side_below_their_prompt(trainer: Client, room: Room, rows: Dataset) -> None:
    pair = [part("chosen", span("learnt", "yes")), part("rejected", span("learnt", "no"))]
    example = {"row": 1, "task": "t-1", "left_out": "", "shared": [span("read", "Well?")], "sequences": pair}
    page = made(trainer, room, examples=[example])
    assert page.index("Well?") < page.index("<h3>Chosen</h3>") < page.index("<h3>Rejected</h3>")
    assert page.count("Well?") == 1


def test_a_prompt_of_a_task_says_where_the_policy_answers(trainer: Client, room: Room, rows: Dataset) -> None:
    page = made(trainer, room, answer=96, learnt=0)
    assert "The policy answers here</b>, in at most 96 tokens" in page
    assert "prompts are never cut" in page


def test_the_launch_form_leads_to_what_it_would_train_on(trainer: Client, room: Room) -> None:
    form = {"base": str(room.base), "task_set": str(room.task_set), "algorithm": "sft", "set.max_length": "64"}
    page = page_of(trainer.get("/p/acme/training/launch/", form))
    assert '<button class="btn" name="preview" value="1" formnovalidate>See what will be learnt</button>' in page
    response = trainer.post("/p/acme/training/launch/", {**form, "preview": "1", "mode": "full", "rank": "8"})
    job = TokenPreview.objects.get()
    assert response.headers["Location"] == f"/p/acme/training/previews/{job.pk}/"
    assert (job.algorithm, job.settings["max_length"], job.dataset.kind) == ("sft", 64, "sft")
    wrong = trainer.post("/p/acme/training/launch/", {**form, "preview": "1", "set.max_length": "many"})
    assert wrong.status_code == 422


def test_a_stranger_and_a_dataset_of_another_kind_find_nothing(
    trainer: Client, room: Room, rows: Dataset, sign_in: SignIn
) -> None:
    job = chosen(trainer, room)
    assert sign_in(room.cast.stranger).get(f"/p/acme/training/previews/{job.pk}/").status_code == 404
    assert trainer.get("/p/acme/training/datasets/rows/2/tokens/").status_code == 404
