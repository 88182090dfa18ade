"""The pages of the room: who may see them, what they show, what a click does."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.http import FileResponse
from django.test import Client
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.agents.models import Artifact
from flywheel.core import recipes
from flywheel.edge.jobs import State
from flywheel.evals.models import EvalRun
from flywheel.promotions.models import Candidate
from flywheel.training.models import Point, TrainingRun
from flywheel.training.pages.launch_form import as_data
from tests.edge.posting import posted
from tests.environments.versions.test_reward_parts import model
from tests.promotions.conftest import agent, candidate, evaluated
from tests.training.conftest import NOON, Room

__all__ = ["agent", "candidate", "evaluated"]
pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
HERE = "/p/acme/training/"
HTMX = {"HX-Request": "true"}


def form(room: Room, **fields: Any) -> dict[str, Any]:
    return {
        "key": str(uuid.uuid4()),
        "base": str(room.base),
        "task_set": str(room.task_set),
        "algorithm": "sft",
        "reason": "a test",
        "set.steps": "12",
        **fields,
    }


def text(response: Any) -> str:
    return str(response.content.decode())


@pytest.mark.parametrize(
    "page", ["", "launch/", "datasets/", "recommendations/", "runs/{run}/", "runs/{run}/live/", "datasets/{dataset}/"]
)
def test_a_stranger_finds_nothing(room: Room, sign_in: SignIn, page: str) -> None:
    run = room.launch()
    address = HERE + page.format(run=run.pk, dataset=str(run.dataset).replace("@", "/"))
    assert sign_in(room.cast.stranger).get(address).status_code == 404
    assert sign_in(room.cast.trainer).get(address).status_code == 200


def test_a_short_run_whose_rewards_are_all_alike_says_at_its_end_that_it_learnt_nothing(
    room: Room, sign_in: SignIn
) -> None:
    run = room.launch(algorithm="grpo")
    room.measured(run, 4, zero_variance_groups=lambda _: 1.0, reward_mean=lambda _: 0.0)
    client, address = sign_in(room.cast.trainer), f"{HERE}runs/{run.pk}/"
    assert "no_variance" not in text(client.get(address))
    TrainingRun.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    page = text(client.get(address))
    assert 'data-alert="no_variance"' in page
    assert "so the run has learnt nothing from it" in page


def test_a_run_of_another_project_is_not_there(room: Room, sign_in: SignIn) -> None:
    run = room.launch()
    for page in (f"runs/{run.pk}/", f"datasets/{run.dataset.name}/1/rows.jsonl"):
        assert sign_in(room.cast.stranger).get(f"/p/elsewhere/training/{page}").status_code == 404


def test_only_trainers_launch_cancel_and_resume(room: Room, sign_in: SignIn) -> None:
    run = room.launch()
    builder = sign_in(room.cast.builder)
    assert builder.get(f"{HERE}launch/").status_code == 403
    for verb in ("cancel", "resume"):
        assert builder.post(f"{HERE}runs/{run.pk}/{verb}/").status_code == 403
    assert "Launch run" not in text(builder.get(HERE))


def test_the_launch_page_says_what_is_known(room: Room, sign_in: SignIn) -> None:
    page = text(sign_in(room.cast.trainer).get(f"{HERE}launch/"))
    assert "SFT on corrected actions" in page
    assert "6 failures corrected" in page
    assert "points</b>" in page
    assert "50.0" in page


def test_without_a_baseline_the_page_offers_to_evaluate(room: Room, sign_in: SignIn) -> None:
    other = room.build.task_set(name="other")
    page = text(sign_in(room.cast.trainer).get(f"{HERE}launch/", {"task_set": str(other)}))
    assert "No baseline yet" in page
    assert f"/p/acme/evals/new/?version={room.base.agent.name}%401" in page


def test_a_double_click_launches_one_run(room: Room, sign_in: SignIn) -> None:
    client, sent = sign_in(room.cast.trainer), form(room)
    first, second = client.post(f"{HERE}launch/", sent), client.post(f"{HERE}launch/", sent)
    (run,) = TrainingRun.objects.all()
    assert first.headers["Location"] == second.headers["Location"] == f"{HERE}runs/{run.pk}/"
    assert (run.settings["steps"], run.created_by) == (12, room.cast.trainer)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"base": "assistant@99"}, "assistant has no version 99; it has 1"),
        ({"task_set": "nothing@1"}, "there is no task set &#x27;nothing&#x27;"),
        ({"algorithm": "a2c"}, "&#x27;a2c&#x27; is unknown"),
        ({"rollouts": "999"}, "there is no eval &#x27;999&#x27;"),
        ({"reason": ""}, "give a reason"),
        ({"seed": "one"}, "&#x27;one&#x27; is not a whole number"),
        ({"seed": "9" * 4400}, "is not a whole number"),
        ({"set.steps": "many"}, "&#x27;many&#x27; is not a whole number; expected a whole number from 1"),
        ({"set.steps": "9" * 4400}, "&#x27; is not a whole number; expected a whole number from 1"),
        ({"set.steps": "2.5"}, "&#x27;2.5&#x27; is not a whole number; expected a whole number from 1"),
        ({"set.steps": ""}, "&#x27;&#x27; is not a whole number; expected a whole number from 1"),
        ({"set.learning_rate": "fast"}, "&#x27;fast&#x27; is not a number; expected a number from 1e-09 to 1"),
        ({"set.lr_schedule": "steep"}, "&#x27;steep&#x27; is not right; expected one of linear, cosine"),
        ({"set.gradient_checkpointing": "maybe"}, "&#x27;maybe&#x27; is not right; expected true or false"),
        ({"mode": "half"}, "&#x27;half&#x27; is unknown; use full, lora, qlora"),
        ({"dataset": "rows@1"}, "there is no dataset rows@1 of"),
        ({"leave_out": "x"}, "there is no eval &#x27;x&#x27;"),
        ({"set.learning_rate": "9"}, "9.0 is out of range"),
        ({"set.micro_batch_size": "5"}, "5 does not divide batch_size 32"),
        ({"mode": "lora", "rank": "x"}, "&#x27;x&#x27; is not a whole number from 1 to 512"),
        ({"passed_on": "optimiser"}, "is not of the form trl.field = value"),
        ({"passed_on": "trl.report_to = wandb"}, "cannot be set, the run directory decides it"),
    ],
)
def test_what_is_wrong_stands_at_its_field(room: Room, sign_in: SignIn, fields: dict[str, str], said: str) -> None:
    response = sign_in(room.cast.trainer).post(f"{HERE}launch/", form(room, **fields))
    assert response.status_code == 422
    assert said in text(response)
    assert not TrainingRun.objects.exists()


def test_the_page_sends_back_what_it_shows_and_it_is_the_run(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    wrong = form(room, algorithm="grpo", passed_on="trl.adam_beta2 = 0.9", seed="x", mode="lora", rank="4",
                 **{"set.steps": "many", "set.top_p": " .5 ", "set.mask_truncated_completions": "true"})  # fmt: skip
    page = text(client.post(f"{HERE}launch/", wrong))
    sent = posted(page)
    kept = {**wrong, "set.top_p": ".5"}
    assert {name: sent.get(name) for name in kept} | {"algorithm": "grpo", "mode": "lora"} == kept
    assert "2 fields to correct" in page
    assert "changed, default 200" in page
    assert page.count('aria-invalid="true"') == 2
    assert "at least 0.01" not in page
    assert "0.01 to 1." in page
    assert len([name for name in sent if name.startswith("set.")]) == len(recipes.defaults("grpo"))
    done = client.post(f"{HERE}launch/", {**sent, "algorithm": "sft", "mode": "full", "seed": "3", "set.steps": "7"})
    assert done.status_code == 302
    run = TrainingRun.objects.get()
    assert (run.seed, run.settings["steps"], run.settings["gradient_checkpointing"]) == (3, 7, False)


def test_what_was_written_stays_and_the_rest_follows_the_algorithm(room: Room, sign_in: SignIn) -> None:
    client = sign_in(room.cast.trainer)
    sft = recipes.defaults("sft")
    shown = {"settings_of": "sft", "set.steps": "12", "set.batch_size": str(sft["batch_size"]), "algorithm": "grpo"}
    response = client.get(f"{HERE}launch/", form(room) | shown, headers=HTMX)
    page = text(response)
    assert "<html" not in page
    assert 'name="set.steps" value="12"' in page
    assert f'name="set.batch_size" value="{recipes.defaults("grpo")["batch_size"]}"' in page
    assert "set." not in response.headers["HX-Replace-Url"]
    assert "algorithm=grpo" in response.headers["HX-Replace-Url"]


def test_a_big_model_is_proposed_an_adapter_and_what_fits_into_memory(room: Room, sign_in: SignIn) -> None:
    big = room.build.version(
        weights=Artifact.objects.create(digest="b" * 64, kind="model", manifest={}, size=3 * 10**9)
    )
    client = sign_in(room.cast.trainer)
    page = posted(text(client.get(f"{HERE}launch/", {"base": str(big), "algorithm": "grpo"})))
    assert (page["mode"], page["set.micro_batch_size"], page["set.max_completion_length"]) == ("lora", "4", "512")
    # Whoever goes back to the small one, without having touched anything, gets what suits that one.
    small = posted(text(client.get(f"{HERE}launch/", page | {"base": str(room.base)}, headers=HTMX)))
    assert (small["mode"], small["set.micro_batch_size"], small["set.max_completion_length"]) == ("full", "0", "96")
    chosen = posted(text(client.get(f"{HERE}launch/", page | {"mode": "full"}, headers=HTMX)))
    assert chosen["mode"] == "full"
    linked = posted(text(client.get(f"{HERE}launch/", {"base": str(big), "mode": "full"})))
    assert linked["mode"] == "full", "as a link says, such as that to another run like it"


def test_every_wrong_field_is_told_at_once(room: Room, sign_in: SignIn) -> None:
    wrong = {"algorithm": "grpo", "set.batch_size": "9", "set.temperature": "hot", "seed": "-"}
    page = text(sign_in(room.cast.trainer).post(f"{HERE}launch/", form(room, **wrong)))
    assert "3 fields to correct" in page
    assert "8 would be right" in page


def test_rollouts_are_for_imitation_and_preference_only(room: Room, sign_in: SignIn) -> None:
    client, held_out = sign_in(room.cast.trainer), str(room.baseline.pk)
    page = text(client.get(f"{HERE}launch/", {"rollouts": held_out}))
    assert f"{room.baseline} is not a run on the train split" in page
    assert f'<option value="{held_out}" selected>' in page
    page = text(client.get(f"{HERE}launch/", {"rollouts": held_out, "algorithm": "grpo"}))
    assert "tasks to practise" in page


def test_passed_on_fields_reach_the_run(room: Room, sign_in: SignIn) -> None:
    sent = form(room, passed_on="trl.adam_beta2 = 0.95\nlora.lora_dropout=0.1", mode="lora", rank="4", alpha="8")
    assert sign_in(room.cast.trainer).post(f"{HERE}launch/", sent).status_code == 302
    run = TrainingRun.objects.get()
    assert (run.settings["trl.adam_beta2"], run.settings["lora.lora_dropout"]) == (0.95, 0.1)
    assert run.tuning == {"mode": "lora", "rank": 4, "alpha": 8}


def test_another_like_it_starts_from_its_choices(room: Room, sign_in: SignIn) -> None:
    run = room.launch(algorithm="dr_grpo", settings={"steps": 33, "trl.adam_beta2": 0.9}, tuning={"mode": "lora"})
    page = text(sign_in(room.cast.trainer).get(f"{HERE}launch/", {"like": run.pk}))
    assert 'name="set.steps" value="33"' in page
    assert "trl.adam_beta2 = 0.9" in page
    assert 'value="dr_grpo" checked' in page
    assert str(run.idempotency_key) not in page


def test_another_like_it_keeps_a_dataset_from_elsewhere(room: Room) -> None:
    run = room.launch()
    assert as_data(run)["dataset"] == "", "one that is built of the set is built again"
    run.dataset.task_set = None
    assert as_data(run)["dataset"] == str(run.dataset)


def test_a_failed_run_says_why_what_is_kept_and_what_to_do(room: Room, sign_in: SignIn) -> None:
    run = room.launch()
    TrainingRun.objects.filter(pk=run.pk).update(
        state=State.FAILED, error_kind="disk_full", error="the disk is full", checkpoint_step=20, done=31
    )
    page = text(sign_in(room.cast.trainer).get(f"{HERE}runs/{run.pk}/"))
    assert "Failed: disk_full." in page
    assert "The checkpoint of step 20" in page
    assert "Free some disk space, then resume." in page
    assert f"{HERE}runs/{run.pk}/resume/" in page


def test_what_a_policy_wrote_is_text(room: Room, sign_in: SignIn) -> None:
    run = room.launch()
    sample: dict[str, Any] = {
        "task_id": "t-1",
        "prompt": "<b>hi",
        "completion": "<script>alert(1)</script>",
        "score": None,
        "parts": {},
        "reason": "<i>no",
    }
    Point.objects.create(run=run, kind=Point.Kind.SAMPLES, step=0, at=NOON, values=[sample])
    page = text(sign_in(room.cast.viewer).get(f"{HERE}runs/{run.pk}/"))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "not scored" in page


def test_the_live_part_is_sent_when_there_is_news_and_ends_with_the_run(room: Room, sign_in: SignIn) -> None:
    run, client = room.launch(), sign_in(room.cast.viewer)
    live = f"{HERE}runs/{run.pk}/live/"
    page = client.get(live, headers=HTMX)
    assert page.status_code == 200
    seen = text(page).partition("?seen=")[2].partition('"')[0]
    assert client.get(live, {"seen": seen}, headers=HTMX).status_code == 204
    run.events.create(text="checkpoint at step 20")
    news = client.get(live, {"seen": seen}, headers=HTMX)
    assert "checkpoint at step 20" in text(news)
    TrainingRun.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    over = client.get(live, {"seen": seen}, headers=HTMX)
    assert (over.status_code, over.headers["HX-Refresh"]) == (286, "true")


def test_the_page_goes_on_asking_until_the_gate_has_spoken(room: Room, sign_in: SignIn) -> None:
    run, client = room.launch(), sign_in(room.cast.viewer)
    live, evaluation = f"{HERE}runs/{run.pk}/live/", run.baseline
    assert evaluation is not None
    TrainingRun.objects.filter(pk=run.pk).update(state=State.SUCCEEDED, evaluation=evaluation)
    EvalRun.objects.filter(pk=evaluation.pk).update(state=State.RUNNING, finished_at=None)
    asked = client.get(live, headers=HTMX)
    assert (asked.status_code, asked.headers["HX-Refresh"]) == (200, "true")
    assert "?seen=" in text(asked)
    EvalRun.objects.filter(pk=evaluation.pk).update(state=State.SUCCEEDED, finished_at=timezone.now())
    assert client.get(live, headers=HTMX).status_code == 200
    long_ago = timezone.now() - timedelta(minutes=2)
    EvalRun.objects.filter(pk=evaluation.pk).update(finished_at=long_ago)
    over = client.get(live, headers=HTMX)
    assert over.status_code == 286
    assert "?seen=" not in text(over)


def test_cancel_and_resume_come_back_to_the_run(room: Room, sign_in: SignIn) -> None:
    run, client = room.launch(), sign_in(room.cast.trainer)
    for verb, state in (("cancel", State.CANCELLED), ("resume", State.QUEUED), ("resume", State.QUEUED)):
        response = client.post(f"{HERE}runs/{run.pk}/{verb}/")
        assert response.headers["Location"] == f"{HERE}runs/{run.pk}/"
        run.refresh_from_db()
        assert run.state == state


def test_a_dataset_is_shown_and_comes_as_a_file(room: Room, sign_in: SignIn) -> None:
    dataset, client = room.launch().dataset, sign_in(room.cast.viewer)
    address = f"{HERE}datasets/{dataset.name}/{dataset.version}/"
    page = text(client.get(address))
    assert dataset.digest in page
    assert "Rows 1 to 6 of 6" in page
    file = client.get(f"{address}rows.jsonl")
    assert isinstance(file, FileResponse)
    assert file.headers["Content-Disposition"] == f'attachment; filename="{dataset.name}-1.jsonl"'
    assert len(b"".join(file.streaming_content).splitlines()) == 6
    file.close()


def test_a_dataset_whose_file_is_lost_says_so(room: Room, sign_in: SignIn) -> None:
    dataset, client = room.launch().dataset, sign_in(room.cast.viewer)
    (settings.HOME / "artifacts" / dataset.file).unlink()
    address = f"{HERE}datasets/{dataset.name}/{dataset.version}/"
    assert "The storage has lost" in text(client.get(address))
    assert client.get(f"{address}rows.jsonl").status_code == 404


def test_the_list_filters_by_its_address(room: Room, sign_in: SignIn) -> None:
    sft, grpo = room.launch(), room.launch(algorithm="grpo")
    client = sign_in(room.cast.viewer)
    assert [run.pk for run in client.get(HERE).context["page"].items] == [grpo.pk, sft.pk]
    assert [run.pk for run in client.get(HERE, {"algorithm": "sft"}).context["page"].items] == [sft.pk]
    assert client.get(HERE, {"state": "failed"}).context["page"].items == []
    assert "Nothing matches" in text(client.get(HERE, {"state": "failed"}))


def test_more_runs_ask_no_more_questions(
    room: Room, sign_in: SignIn, django_assert_max_num_queries: Callable[[int], Any]
) -> None:
    client = sign_in(room.cast.viewer)
    for _ in range(3):
        room.asked(room.launch(), {0: 0.2, 20: 0.4})
    with django_assert_max_num_queries(40) as few:
        client.get(HERE)
    for _ in range(6):
        room.asked(room.launch(), {0: 0.2, 20: 0.4})
    with django_assert_max_num_queries(len(few)):
        client.get(HERE)


def test_the_gain_of_each_run_is_drawn_with_its_interval(
    room: Room,
    candidate: Candidate,
    sign_in: SignIn,
) -> None:
    run, client = room.launch(), sign_in(room.cast.viewer)
    assert "Gain of each run" not in text(client.get(HERE))
    Candidate.objects.filter(pk=candidate.pk).update(run=run)
    page = text(client.get(HERE))
    assert "Gain of each run" in page
    assert f"{run} SFT" in page
    assert "66.6667" in page


def test_a_run_of_a_reward_model_shows_canaries_and_no_success(room: Room, sign_in: SignIn) -> None:
    run = room.launch()
    run.algorithm, run.settings, run.state = "reward_model", recipes.defaults("reward_model"), State.SUCCEEDED
    run.reward_model = model(room.build, degenerate={"empty": {"median": 3.0, "beaten": 1, "n": 40}})
    run.save()
    for step, share in ((0, 0.5), (6, 0.9)):
        values = {"score": share, "pair_accuracy": share, "margin": 1.0, "loss": 0.5, "n": 40, "unscored": 0}
        Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=step, at=NOON, values=values)
    client = sign_in(room.cast.trainer)
    page = text(client.get(f"{HERE}runs/{run.pk}/"))
    assert "assistant-reward@1 created." in page
    assert "A verifier cannot use it: an empty answer scores 3.00" in page
    assert "1 of 40" in page
    assert "Unseen pairs ranked right" in page
    assert "Held-out success" not in page
    assert "assistant-reward@1" in text(client.get(HERE))
    there = "/p/acme/environments/reward-models/assistant-reward@1/"
    assert page.count(there) == 2, "from the note and from the lineage"
    model_page = text(client.get(there))
    assert f"{HERE}runs/{run.pk}/" in model_page
    assert f"{HERE}datasets/{run.dataset.name}/{run.dataset.version}/" in model_page
