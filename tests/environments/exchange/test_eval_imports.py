"""An eval of the hosted service becomes an environment with its tasks; what is not taken is said before it is made."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope
from flywheel.core import envs
from flywheel.core.envs import Task, episode
from flywheel.core.envs.environment import always
from flywheel.core.errors import FieldError
from flywheel.core.traces import Trace
from flywheel.edge.refusals import Refused
from flywheel.environments.exchange.eval_imports import (
    EvalImport,
    EvalTaken,
    import_eval,
    preview_eval,
    read_document,
    read_eval,
)
from flywheel.environments.models import Environment
from flywheel.environments.proofs.proof_jobs import prove_some
from flywheel.environments.proofs.red_green_proof import failed_checks
from flywheel.environments.tasks.task_rows import core_task
from tests.conftest import Cast
from tests.pages import page_of
from workers.judging import attempt_verdicts

pytestmark = pytest.mark.django_db

SAID = "{{sample.output_text}}"
MATCH = {"type": "string_check", "name": "Match", "input": SAID, "reference": "{{item.label}}", "operation": "eq"}
ALIKE = {**MATCH, "type": "text_similarity", "name": "Alike", "evaluation_metric": "rouge_l", "pass_threshold": 0.8}
COSINE = {**ALIKE, "name": "Near", "evaluation_metric": "cosine"}
POLITE = {
    "type": "label_model",
    "name": "Polite",
    "model": "gpt-5",
    "input": [{"role": "user", "content": f"Polite? {SAID}"}],
    "labels": ["yes", "no"],
    "passing_labels": ["yes"],
}
SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}, "ticket": {"type": "string"}}}
EVAL: dict[str, Any] = {
    "object": "eval",
    "id": "eval_1",
    "name": "Tickets",
    "created_at": 1,
    "metadata": {},
    "data_source_config": {"type": "custom", "item_schema": SCHEMA},
    "testing_criteria": [MATCH],
}
ITEMS = [
    {"item": {"ticket": "My screen is broken", "label": "Hardware"}},
    {"item": {"ticket": "I cannot log in", "label": "Access"}},
    {"item": {"ticket": "Which printer do I take?", "label": "Hardware"}},
]
RUN = {
    "object": "eval.run",
    "id": "run_1",
    "model": "gpt-5",
    "data_source": {
        "type": "responses",
        "source": {"type": "file_content", "content": ITEMS},
        "input_messages": {
            "type": "template",
            "template": [
                {"role": "developer", "content": "Sort tickets."},
                {"role": "user", "content": {"type": "input_text", "text": "Sort this: {{item.ticket}}"}},
            ],
        },
        "sampling_params": {"temperature": 0},
    },
}


def lines(rows: list[Any]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def bring(cast: Cast, document: Any, rows: list[Any] | None = None, verb: Any = import_eval, **more: Any) -> EvalTaken:
    wanted = EvalImport(name="tickets", document=document, **more)
    made: EvalTaken = verb(
        project=cast.project, actor=Actor(cast.builder), wanted=wanted, rows=None if rows is None else lines(rows)
    )
    return made


def score(home: Environment, task: Task, answer: str) -> float | None:
    version = home.latest
    env = envs.build("episode", version.config, version.verifier)
    trace = Trace.from_messages("", episode(env, task, always(answer)))
    return env.verifier(task)(trace, task.target).score


def test_graders_judge_here_as_they_did(cast: Cast) -> None:
    made = bring(cast, {**EVAL, "testing_criteria": [MATCH, ALIKE]}, ITEMS)
    assert [(grader.name, grader.state) for grader in made.graders] == [("Match", "taken"), ("Alike", "changed")]
    assert (made.report.made, made.report.unproved, made.notes) == (3, 0, [])
    assert [part["name"] for part in made.environment.latest.verifier["parts"]] == ["match", "alike", "plain_words"]
    task = core_task(made.environment.tasks.get(number=1))
    assert task.prompt == "My screen is broken", "the field that nothing is compared with"
    assert task.target["references"] == {"match": "Hardware", "alike": "Hardware"}
    assert task.target["item"] == ITEMS[0]["item"]
    assert [score(made.environment, task, each) for each in ("Hardware", "hardware", "Access")] == [1.0, 0.5, 0.0]
    assert score(made.environment, task, "") == 0.0


def test_a_run_brings_request_and_rows_and_what_it_says_besides_is_noted(cast: Cast) -> None:
    document = {"eval": EVAL, "runs": [RUN, {**RUN, "result_counts": {"passed": 1}, "shared_with": "x"}]}
    made = bring(cast, document)
    assert [task.prompt for task in made.environment.tasks.order_by("number")] == [
        f"Sort this: {row['item']['ticket']}" for row in ITEMS
    ]
    told = " ".join(made.notes)
    for words in ("system prompt", "sampling", "results of runs", "shared_with is not read", "the last of its 2 runs"):
        assert words in told
    assert made.environment.description == "Imported from the OpenAI eval Tickets."


def test_messages_of_an_item_are_a_conversation(cast: Cast) -> None:
    talk = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "?"},
    ]
    run = {**RUN["data_source"], "input_messages": {"type": "item_reference", "item_reference": "item.talk"}}  # type: ignore[dict-item]
    made = bring(cast, [EVAL, {"data_source": run}], [{"talk": talk, "label": "x"}])
    (task,) = made.environment.tasks.all()
    assert (task.prompt, len(task.state["messages"])) == ("?", 3)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"item": {"ticket": "Help"}}, "item.label"),
        ({"item": {"label": "Help"}}, "item.ticket"),
        ({"item": 3}, "item"),
        ([], ""),
        ({"item": {"ticket": " ", "label": "x"}}, "prompt"),
    ],
)
def test_an_item_that_does_not_fit_is_named_and_the_others_are_kept(cast: Cast, row: Any, field: str) -> None:
    made = bring(cast, EVAL, [*ITEMS, row])
    assert (made.report.made, made.report.left_out) == (3, 1)
    assert (made.report.problems[0].line, made.report.problems[0].field) == (4, field)


def test_nothing_is_dropped_silently(cast: Cast) -> None:
    document = {**EVAL, "testing_criteria": [MATCH, COSINE, POLITE]}
    with pytest.raises(
        Refused, match=r"2 of its 3 graders cannot be taken: Near: cosine .*; Polite: this project has no"
    ):
        bring(cast, document, ITEMS)
    assert not Environment.objects.exists()
    made = bring(cast, document, ITEMS, is_partial=True)
    assert [grader.state for grader in made.graders] == ["taken", "left", "left"]
    assert [part["name"] for part in made.environment.latest.verifier["parts"]] == ["match", "plain_words"]


def test_a_judge_is_taken_where_there_is_one_to_ask(cast: Cast) -> None:
    cast.project.upstream = {"base_url": "http://localhost:9", "api_key_env": ""}
    cast.project.save()
    made = bring(cast, {**EVAL, "testing_criteria": [POLITE]}, ITEMS)
    assert made.report.waiting == 3
    assert "no grader says what a right answer is" in made.notes[-1]
    assert made.environment.latest.verifier["parts"][0]["type"] == "judge"
    assert made.environment.tasks.get(number=1).target["wanted"] == [{"type": "words", "text": "Hardware"}]


def test_python_is_proved_in_the_sandbox(cast: Cast) -> None:
    source = (
        "import re\n"
        "def grade(sample, item):\n"
        "    return float(re.fullmatch(item['label'], sample['output_text'], re.I) is not None)\n"
    )
    made = bring(cast, {**EVAL, "testing_criteria": [{"type": "python", "name": "Code", "source": source}]}, ITEMS)
    assert (made.report.waiting, made.environment.provings.count()) == (3, 1)
    proved = prove_some(made.environment, made.environment.latest, attempt_verdicts.RUNNERS)
    assert [failed_checks(task) for task in proved] == [[], [], []]


def test_an_answer_that_is_json_passes_where_the_rows_want_json(cast: Cast) -> None:
    rows = [{"item": {"ticket": f"Ticket {number}?", "label": f'{{"team": {number}}}'}} for number in range(3)]
    made = bring(cast, EVAL, rows)
    assert (made.report.made, made.report.unproved) == (3, 0)
    task = core_task(made.environment.tasks.get(number=1))
    assert [score(made.environment, task, each) for each in ('{"team": 0}', '{"team": 9}')] == [1.0, 0.0]


def test_items_that_are_held_out_elsewhere_are_left_out_and_sources_are_kept(cast: Cast) -> None:
    rows = [{"item": {**row["item"], "cluster": "mail"}} for row in ITEMS]
    rows += [{"item": {**row["item"], "ticket": "Again", "split": "held_out"}} for row in ITEMS]
    made = bring(cast, EVAL, rows)
    assert (made.report.made, made.report.left_out, made.report.problems[0].field) == (3, 3, "split")
    assert {task.cluster for task in made.environment.tasks.all()} == {"mail"}


def test_a_preview_is_the_import_and_makes_nothing(cast: Cast) -> None:
    seen = bring(cast, EVAL, ITEMS, verb=preview_eval)
    assert (seen.report.made, seen.report.unproved) == (3, 0)
    assert not Environment.objects.exists()
    assert bring(cast, EVAL, ITEMS).report.splits == seen.report.splits


@pytest.mark.parametrize(
    ("document", "rows", "reason"),
    [
        ({"a": 1}, ITEMS, "eval: it holds no eval"),
        ({**EVAL, "name": "a\0b"}, ITEMS, "eval: it holds what a database cannot keep"),
        ({**EVAL, "testing_criteria": [MATCH] * 40}, ITEMS, "parts: 41 are too many"),
        ([EVAL, EVAL], ITEMS, "eval: it holds 2 evals"),
        ({**EVAL, "testing_criteria": [COSINE]}, ITEMS, "eval: none of its graders can be taken: Near: cosine"),
        ({**EVAL, "testing_criteria": []}, ITEMS, "none of its graders"),
        (EVAL, None, "rows: there are no items"),
        (EVAL, [{"item": {}}], "rows: no item becomes a task; line 1: item: expected an object"),
        ({"testing_criteria": [MATCH]}, ITEMS, "request: nothing says what the user asks"),
    ],
)
def test_what_is_no_eval_is_refused_by_name(cast: Cast, document: Any, rows: Any, reason: str) -> None:
    with pytest.raises(FieldError) as refusal:
        bring(cast, document, rows)
    assert str(refusal.value).startswith(reason) or reason in str(refusal.value)
    assert not Environment.objects.exists()


def test_a_grader_alone_and_a_request_of_ones_own(cast: Cast) -> None:
    made = bring(cast, MATCH, ITEMS, request="Which team? {{item.ticket}}")
    assert made.environment.tasks.get(number=2).prompt == "Which team? I cannot log in"
    assert read_eval(cast.project, read_document(b'{"type": 1}\n' + json.dumps(EVAL).encode())).name == "Tickets"
    with pytest.raises(Refused, match="eval: not valid JSON"):
        read_document(b"{")


def test_the_page_shows_what_is_taken_and_then_makes_it(cast: Cast, sign_in: Callable[..., Client]) -> None:
    client, home = sign_in(cast.builder), reverse("environments:import_eval", args=["acme"])
    assert "30 November 2026" in page_of(client.get(home))
    assert client.post(home, {"name": "tickets", "held_out_share": "0.4"}).status_code == 422
    document = {**EVAL, "testing_criteria": [{**MATCH, "name": "<b>Match"}, COSINE]}
    files = {
        "eval": SimpleUploadedFile("eval.json", json.dumps(document).encode()),
        "rows": SimpleUploadedFile("items.jsonl", b"\n".join(lines([*ITEMS, {"item": {"ticket": "?"}}]))),
    }
    sent: dict[str, Any] = {"name": "tickets", "held_out_share": "0.4"}
    answer = client.post(home, {**sent, **files})
    page = page_of(answer)
    assert answer.status_code == 200
    for words in (
        "3 of 4 items become tasks",
        "1 of 2 graders are not supported",
        "&lt;b&gt;Match",
        "<code>item.label</code>",
    ):
        assert words in page
    assert not Environment.objects.exists()
    form = answer.context["kept"]
    sent |= {"kept_eval": form["eval"].token, "kept_rows": form["rows"].token, "make": "1"}
    refused = client.post(home, sent)
    assert (refused.status_code, "cannot be taken" in page_of(refused)) == (422, True)
    assert client.post(home, {**sent, "partial": "1"}).status_code == 302
    assert Environment.objects.get().tasks.count() == 3
    gone = client.post(home, {**sent, "name": "again", "partial": "1"})
    assert "It expired" in page_of(gone), "the files are gone with their import"


def test_programs_import_it_too(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    path, headers = "/api/v1/imported-evals", key(Scope.BUILD)
    body: dict[str, Any] = {"name": "tickets", "eval": {**EVAL, "testing_criteria": [MATCH, COSINE]}, "rows": ITEMS}
    seen = client.post(path, {**body, "preview": True}, "application/json", headers=headers)
    assert (seen.status_code, seen.json()["tasks"]["made"]) == (200, 3)
    assert [each["state"] for each in seen.json()["graders"]] == ["taken", "left"]
    assert not Environment.objects.exists()
    refused = client.post(path, body, "application/json", headers=headers)
    assert (refused.status_code, "partial" in refused.json()["detail"]) == (422, True)
    made = client.post(path, {**body, "partial": True}, "application/json", headers=headers)
    assert (made.status_code, made.json()["environment"]) == (201, "tickets")
    assert made.json()["request"] == "{{item.ticket}}"
