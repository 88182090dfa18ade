"""The pages that make datasets from elsewhere, and how such a dataset is shown."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core.traces import Message, Step, Trace
from flywheel.edge.jobs import State
from flywheel.environments.models import Split
from flywheel.training.datasets import build_jobs, dataset_uploads
from flywheel.training.datasets.dataset_builder import build
from flywheel.training.models import Dataset, DatasetBuild
from flywheel.training.pages.datasets import FAILED_FOR
from flywheel.trajectories.models import Label, Source
from flywheel.trajectories.store.merge import write
from tests.pages import page_of
from tests.training.conftest import WRONG, Room, built, right

pytestmark = pytest.mark.django_db

SignIn = Callable[[User], Client]


def address(room: Room, name: str, *values: Any) -> str:
    return reverse(f"training:{name}", args=[room.cast.project.slug, *values])


def made(client: Client, answer: Any) -> str:
    """The page of the dataset, to which its build's page leads when it is built."""
    assert "waiting for a worker" in client.get(answer["Location"]).content.decode()
    built(DatasetBuild.objects.latest("pk"))
    return client.get(answer["Location"], follow=True).content.decode()


def file(*rows: Any) -> SimpleUploadedFile:
    return SimpleUploadedFile("talks.jsonl", "\n".join(json.dumps(row) for row in rows).encode())


CHAT = {"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "<b>Hi</b>"}]}
CARD = {"name": "talks", "licence": "MIT", "kind": "", "description": "", "source": "", "language": ""}


def talk(*asked: str) -> Trace:
    """A conversation whose answers are the steps s0, s1, …"""
    steps = [
        Step(
            f"s{at}",
            "assistant",
            input=[Message("user", text)],
            output=[Message("assistant", f"To {text}")],
        )
        for at, text in enumerate(asked)
    ]
    return Trace("9" * 32, steps)


def test_ticked_trajectories_are_looked_at_and_then_made(room: Room, sign_in: SignIn) -> None:
    good = room.build.trajectory(label=Label.PASS)
    other = room.build.trajectory("Something else that nobody said anything of")
    client, url = sign_in(room.cast.trainer), address(room, "demonstrations")
    begun = client.post(url, {"begin": "1", "q": "", "id": [good.trace_id, other.trace_id]}).content.decode()
    assert "2 trajectories ticked" in begun
    asked = {
        "name": "good",
        "ids": f"{good.trace_id} {other.trace_id}",
        "good": "good",
        "version": str(room.base),
        "start": "1",
    }
    shown = client.post(url, asked).content.decode()
    assert "Not rated good" in shown
    assert reverse("trajectories:detail", args=[room.cast.project.slug, other.trace_id]) in shown
    assert not Dataset.objects.exists()
    assert "1 of 2 trajectories" in made(client, client.post(url, {**asked, "make": "1"}))
    dataset = Dataset.objects.get()
    assert (dataset.rows, dataset.recipe["by_hand"]) == (1, 2)


def test_a_trajectory_is_learnt_from_one_of_its_steps_on(room: Room, sign_in: SignIn) -> None:
    project = room.cast.project
    write(project, [talk("One?", "Two?", "Three?")], source=Source.IMPORT)
    client, page = sign_in(room.cast.trainer), reverse("trajectories:detail", args=[project.slug, "9" * 32])
    shown = client.get(page, {"step": "s1"}).content.decode()
    link = f"{address(room, 'demonstrations')}?id={'9' * 32}&amp;step=s1"
    assert link in shown
    begun = page_of(client.get(link.replace("&amp;", "&")))
    assert "from one of its steps on" in begun
    assert '<option value="filter" selected>' in begun
    asked = {"name": "good", "ids": "9" * 32, "step": "s1", "whole": "", "good": "filter", "version": str(room.base)}
    made(client, client.post(address(room, "demonstrations"), {**asked, "make": "1"}))
    assert [dataset.rows for dataset in Dataset.objects.all()] == [2]
    made(client, client.post(address(room, "demonstrations"), {**asked, "whole": "1", "make": "1"}))
    assert Dataset.objects.latest("pk").rows == 3


def test_who_may_not_train_is_not_offered_it(room: Room, sign_in: SignIn) -> None:
    project = room.cast.project
    write(project, [talk("One?")], source=Source.IMPORT)
    page = reverse("trajectories:detail", args=[project.slug, "9" * 32])
    assert "Train from here" not in sign_in(room.cast.reviewer).get(page, {"step": "s0"}).content.decode()


def test_each_dataset_says_who_chose_its_rows(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    uploaded = made_of(room, client, CHAT)
    shown = client.get(address(room, "dataset", uploaded.name, uploaded.version)).content.decode()
    assert "unknown whether by a reward" in shown
    assert "chose none of these rows" not in shown
    room.build.trajectory(label=Label.PASS)
    asked = {"name": "good", "good": "good", "version": str(room.base), "start": "1", "make": "1"}
    shown = made(client, client.post(address(room, "demonstrations"), asked))
    assert "people’s labels and feedback" in shown


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"version": "nobody@1"}, "nobody"), ({"q": "colour:blue"}, "colour"), ({"start": "0"}, "greater than or equal")],
)
def test_a_choice_that_cannot_be_is_told_at_its_field(
    room: Room, sign_in: SignIn, wrong: dict[str, str], words: str
) -> None:
    asked = {"name": "good", "good": "good", "version": str(room.base), "start": "1", **wrong}
    answer = sign_in(room.cast.trainer).post(address(room, "demonstrations"), asked)
    assert answer.status_code == 422
    assert words in answer.content.decode()


def test_an_upload_is_looked_at_kept_and_made(room: Room, sign_in: SignIn) -> None:
    client, url = sign_in(room.cast.trainer), address(room, "upload_dataset")
    shown = client.post(url, {**CARD, "file": file(CHAT, {"messages": "x", "chosen": 1})})
    text = shown.content.decode()
    assert "1 row not taken" in text
    assert "&lt;b&gt;Hi" in text
    kept = text.split('name="kept" value="')[1].split('"')[0]
    page = made(client, client.post(url, {**CARD, "kept": kept, "make": "1"}))
    assert "MIT" in page
    assert "1 row not taken" in page
    assert Dataset.objects.get().recipe["file"] == "talks.jsonl"
    assert "MIT" in client.get(address(room, "datasets")).content.decode()


def test_an_upload_without_licence_or_file_is_refused(room: Room, sign_in: SignIn) -> None:
    client, url = sign_in(room.cast.trainer), address(room, "upload_dataset")
    assert "Choose a file" in client.post(url, {**CARD, "kept": ""}).content.decode()
    answer = client.post(url, {**CARD, "licence": "", "file": file(CHAT)})
    assert answer.status_code == 422
    gone = client.post(url, {**CARD, "kept": "0" * 32})
    assert "choose it again" in gone.content.decode()


def test_a_second_click_leads_to_the_dataset_also_when_it_is_built(room: Room, sign_in: SignIn) -> None:
    client, url = sign_in(room.cast.trainer), address(room, "upload_dataset")
    text = client.post(url, {**CARD, "file": file(CHAT)}).content.decode()
    kept, key = (text.split(f'name="{name}" value="')[1].split('"')[0] for name in ("kept", "key"))
    sent = {**CARD, "kept": kept, "key": key, "make": "1"}
    first = client.post(url, sent)
    built(DatasetBuild.objects.latest("pk"))
    again = client.post(url, sent)
    assert (again.status_code, again["Location"]) == (302, first["Location"])
    assert DatasetBuild.objects.count() == 1


def test_a_build_whose_file_is_gone_is_not_offered_to_be_tried_again(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    bad = SimpleUploadedFile("talks.jsonl", b"{broken")
    page = client.post(address(room, "upload_dataset"), {**CARD, "file": bad, "make": "1"})["Location"]
    job = DatasetBuild.objects.get()
    DatasetBuild.objects.update(state=State.FAILED)
    assert "Try again" in client.get(page).content.decode()
    build_jobs.discard(job)
    assert "Try again" not in client.get(page).content.decode()


def test_a_build_is_found_in_the_list_until_it_is_a_dataset(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    page = client.post(address(room, "upload_dataset"), {**CARD, "file": file(CHAT), "make": "1"})["Location"]

    def is_listed() -> bool:
        return f'href="{page}"' in page_of(client.get(address(room, "datasets")))

    assert is_listed()
    DatasetBuild.objects.update(state=State.FAILED, finished_at=timezone.now())
    assert is_listed(), "somebody must see why"
    DatasetBuild.objects.update(finished_at=timezone.now() - 2 * FAILED_FOR)
    assert not is_listed()
    DatasetBuild.objects.update(state=State.QUEUED, finished_at=None)
    built(DatasetBuild.objects.get())
    assert not is_listed()


def made_of(room: Room, client: Client, *rows: Any) -> Dataset:
    made(client, client.post(address(room, "upload_dataset"), {**CARD, "file": file(*rows), "make": "1"}))
    return Dataset.objects.get()


def test_rows_come_in_pages_and_as_files(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    rows = [{**CHAT, "messages": [{"role": "user", "content": f"Number {n}?"}, CHAT["messages"][1]]} for n in range(60)]
    made = made_of(room, client, *rows)
    page = address(room, "dataset", made.name, made.version)
    assert "Rows 1 to 20 of 60" in client.get(page).content.decode()
    last = client.get(page, {"start": "40"}).content.decode()
    assert "Rows 41 to 60 of 60" in last
    assert "?start=20#rows" in last
    content = client.get(address(room, "dataset_format", made.name, made.version, "sft")).content
    assert json.loads(content.splitlines()[0])["messages"][0]["content"] == "Number 0?"
    assert client.get(address(room, "dataset_format", made.name, made.version, "dpo")).status_code == 404


def test_what_was_held_out_later_does_not_leave_the_house(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    asked = "Tell me the capital city of France please"
    said = {"role": "assistant", "content": "Paris"}
    made = made_of(room, client, {"messages": [{"role": "user", "content": asked}, said]})
    task = room.build.task(Split.HELD_OUT, prompt=asked, target={"answer": "Paris"})
    room.build.task_set(name="later").members.create(task=task, split=Split.HELD_OUT)
    answer = client.get(address(room, "dataset_format", made.name, made.version, "sft"))
    assert answer.status_code == 422
    assert "1 of 9 held-out tasks" in answer.content.decode()


def test_prompts_say_that_nothing_here_can_score_them(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    made = made_of(room, client, {"prompt": "Write a poem"})
    text = client.get(address(room, "dataset", made.name, made.version)).content.decode()
    assert "no environment can score a bare prompt" in text
    assert "Train\n          on it" not in text


def test_the_launch_form_offers_what_the_algorithm_can_learn_from(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    made = made_of(room, client, CHAT)
    asked = {"base": str(room.base), "task_set": str(room.task_set), "algorithm": "sft"}
    assert f'value="{made}"' in client.get(address(room, "launch"), asked).content.decode()
    assert f'value="{made}"' not in client.get(address(room, "launch"), {**asked, "algorithm": "dpo"}).content.decode()
    chosen = client.get(address(room, "launch"), {**asked, "dataset": str(made)}).content.decode()
    assert "from an upload" in chosen


def test_a_mix_is_offered_with_it(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    made = made_of(room, client, CHAT)
    assert str(made) in client.get(address(room, "mix"), {"kind": "sft"}).content.decode()


def test_programs_do_the_same(room: Room, client: Client, key: Callable[..., dict[str, str]]) -> None:
    headers = key("train", "read", by=room.cast.trainer)
    row = room.build.trajectory(label=Label.PASS)
    body = {"name": "good", "version": {"name": "assistant"}, "q": "label:pass", "preview": True}
    url = "/api/v1/datasets/from-trajectories"
    seen = client.post(url, body, content_type="application/json", headers=headers)
    assert (seen.status_code, seen.json()["rows"]) == (200, 1)
    assert seen.json()["first"][0]["trajectory"] == row.trace_id
    thumbs = client.post(url, {**body, "good": "thumbs"}, content_type="application/json", headers=headers).json()
    assert (thumbs["kind"], thumbs["thumbs"], thumbs["first"][0]["label"]) == ("thumbs", {"true": 1}, True)
    sent = client.post(url, {**body, "preview": False}, content_type="application/json", headers=headers)
    assert (sent.status_code, sent.json()["state"], sent.json()["dataset"]) == (202, "queued", None)
    built(DatasetBuild.objects.latest("pk"))
    told = client.get(f"/api/v1/dataset-builds/{sent.json()['id']}", headers=headers).json()
    assert (told["state"], told["dataset"]["origin"]) == ("succeeded", "trajectories")
    sent = client.post(
        "/api/v1/datasets/upload?name=talks&licence=MIT",
        json.dumps(CHAT) + "\n{bad",
        content_type="application/x-ndjson",
        headers=headers,
    )
    assert sent.status_code == 202
    built(DatasetBuild.objects.latest("pk"))
    told = client.get(f"/api/v1/dataset-builds/{sent.json()['id']}", headers=headers).json()
    assert (told["dataset"]["card"]["licence"], told["dataset"]["task_set"]) == ("MIT", None)
    assert [(problem["at"], problem["field"]) for problem in told["report"]["problems"]] == [("line 2", "")]
    refused = client.post(
        "/api/v1/datasets/upload?name=talks", json.dumps(CHAT), content_type="application/x-ndjson", headers=headers
    )
    assert (refused.status_code, refused.json()["detail"][:7]) == (422, "licence")


def test_a_program_is_told_how_large_a_file_may_be(
    room: Room, client: Client, key: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = key("train", by=room.cast.trainer)
    monkeypatch.setattr(dataset_uploads, "MAX_BYTES", 1)
    url = "/api/v1/datasets/upload?name=talks&licence=MIT"
    refused = client.post(url, json.dumps(CHAT), content_type="application/x-ndjson", headers=headers)
    assert (refused.status_code, "send it in parts" in refused.json()["detail"]) == (413, True)
    assert "import_trajectories" not in refused.json()["detail"], "which makes no dataset"


def thumb(asked: str, said: str, label: bool) -> dict[str, Any]:
    return {"prompt": asked, "completion": said, "label": label}


def test_answers_show_their_thumb_and_kto_is_offered_for_them(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    made = made_of(room, client, thumb("Hi?", "<b>Hello</b>", True), thumb("Bye?", "Go away", False))
    page = client.get(address(room, "dataset", made.name, made.version))
    text = page_of(page)
    assert "1 up, 1 down" in text
    assert [text.count(f"thumb {way}") for way in ("up", "down")] == [1, 1]
    assert "&lt;b&gt;Hello" in page.content.decode()
    launch = client.get(address(room, "launch"), {"dataset": str(made), "task_set": str(room.task_set)})
    assert 'value="kto" checked' in page_of(launch)
    assert "1 good answers, 1 bad" not in page_of(launch), "it says where the rows come from"


def test_thumbs_that_are_all_alike_say_what_is_missing(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    made = made_of(room, client, thumb("Hi?", "Hello", True))
    assert "has 1 good answers and no bad one" in page_of(client.get(address(room, "dataset", made.name, made.version)))
    asked = {"dataset": str(made), "task_set": str(room.task_set), "algorithm": "kto"}
    assert "thumbs down" in page_of(client.get(address(room, "launch"), asked))
    built = {"task_set": str(room.task_set), "algorithm": "kto"}
    assert "has 6 good answers and no bad one" in page_of(client.get(address(room, "launch"), built))


def test_thumbs_of_a_task_set_are_shown_by_task(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    rollouts = room.evaluated(lambda task, sample: WRONG if sample else right(task), split=Split.TRAIN)
    asked = {"task_set": str(room.task_set), "algorithm": "kto", "rollouts": str(rollouts.pk)}
    assert "6 good answers, 6 bad" in page_of(client.get(address(room, "launch"), asked))
    actor = Actor(room.cast.trainer)
    made = build(name="mail", kind="thumbs", task_set=room.task_set, actor=actor, rollouts=rollouts)
    text = page_of(client.get(address(room, "dataset", made.name, made.version)))
    assert "6 up, 6 down" in text
    assert [text.count(f"thumb {way}") for way in ("up", "down")] == [6, 6]


def test_scored_attempts_show_their_scores_and_awr_is_offered_for_them(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    tried = [{"completion": "<b>Hello</b>", "score": 1}, {"completion": "Go away", "score": -0.5}]
    made = made_of(room, client, {"prompt": "Hi?", "attempts": tried})
    page = client.get(address(room, "dataset", made.name, made.version))
    text = page_of(page)
    assert "2 attempts in 1 group, of which 1 tells better from worse" in text
    assert [text.count(score) for score in ("score 1", "score -0.5")] == [1, 1]
    assert "&lt;b&gt;Hello" in page.content.decode()
    launch = client.get(address(room, "launch"), {"dataset": str(made), "task_set": str(room.task_set)})
    assert 'value="awr" checked' in page_of(launch)
    asked = {"task_set": str(room.task_set), "algorithm": "awr"}
    assert "name an evaluation of the train tasks" in page_of(client.get(address(room, "launch"), asked))
    rollouts = room.evaluated(lambda task, sample: WRONG if sample else right(task), split=Split.TRAIN)
    chosen = page_of(client.get(address(room, "launch"), {**asked, "rollouts": str(rollouts.pk)}))
    assert "12 attempts in 6 groups, of which 6 tell better from worse" in chosen
    shown = page_of(client.get(address(room, "rollouts", rollouts.pk), {"form": "scored"}))
    assert "attempts with their scores" in shown
    assert "Reward at least" not in shown
