"""Other people's rows as tasks of ours, and the reasons why a row is none."""

import json
from typing import Any

import pytest

from flywheel.core.envs import build
from flywheel.core.interop.foreign_tasks import CannotTake, task_of
from tests.interop.environments import TOOLS, export_of, tasks_of

WORKPLACE = build("workplace", {}, {"kind": "workplace"}).tools
CALL = {"name": "mail_send", "arguments": '{"to": "Bako", "text": "Hi"}'}
TARGET = {"tool": "mail.send", "arguments": {"to": "Bako", "text": "Hi"}}
ASKED = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Greet Bako"}]


def nemo(**more: Any) -> dict[str, Any]:
    return {"id": 3, "responses_create_params": {"input": ASKED, "tools": []}, "ground_truth": [CALL], **more}


@pytest.mark.parametrize(
    "row",
    [
        nemo(),
        nemo(ground_truth=None, verifier_metadata={"ground_truth": [CALL]}),
        {"prompt": ASKED, "answer": json.dumps(CALL)},
        {"question": "Greet Bako", "answer": "", "info": {"expected_calls": [{"function": CALL}]}},
        {"prompt": "Greet Bako", "target": TARGET, "state": {}, "split": "train"},
    ],
)
def test_the_same_task_in_five_ways(row: dict[str, Any]) -> None:
    task = task_of(row, "tool_call", TOOLS)
    assert (task.prompt, task.target) == ("Greet Bako", TARGET)
    assert task.cluster == task_of(nemo(), "tool_call", TOOLS).cluster, "the same request is one source"


def test_the_row_of_nemo_gyms_workplace_fits_ours() -> None:
    wanted = [{"name": "email_reply_email", "arguments": '{"email_id": "00000057", "body": "Thanks"}'}]
    task = task_of(nemo(ground_truth=wanted, category="workplace_assistant_email"), "workplace", WORKPLACE)
    call = {"tool": "email.reply_email", "arguments": {"email_id": "00000057", "body": "Thanks"}}
    assert task.target == {"calls": [call]}
    assert task.slice == "workplace_assistant_email"


@pytest.mark.parametrize("kind", ["tool_call", "workplace"])
def test_what_was_exported_comes_back(kind: str) -> None:
    env = export_of(kind).env
    for task in tasks_of(kind):
        found = task_of(json.loads(json.dumps({**task.to_json(), "split": "train"})), kind, env.tools)
        assert found.to_json() == {**task.to_json(), "cluster": found.cluster}
        assert found.cluster == (task.cluster or found.cluster)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (5, "not a JSON object"),
        (nemo(split="validation"), "might be trained on"),
        ({**nemo(), "verifier_metadata": {"split": "held_out"}}, "might be trained on"),
        (nemo(ground_truth=[CALL, CALL]), "2 calls"),
        (nemo(ground_truth=[]), "says nowhere"),
        (nemo(ground_truth=[{"name": "rm_rf", "arguments": {}}]), "no tool 'rm_rf'"),
        (nemo(ground_truth=[{"arguments": {}}]), "no name"),
        (nemo(ground_truth=[{"name": "search", "arguments": "{"}]), "no JSON object"),
        (nemo(ground_truth="42"), "no list of calls"),
        ({"question": "What is 6 times 7?", "answer": "It is 42"}, "expected a tool call"),
        ({"prompt": [*ASKED, *ASKED], "answer": json.dumps(CALL)}, "2 requests"),
        ({"answer": json.dumps(CALL)}, "0 requests"),
    ],
)
def test_why_a_row_is_no_task(row: Any, reason: str) -> None:
    with pytest.raises(CannotTake, match=reason):
        task_of(row, "tool_call", TOOLS)


def test_games_are_not_taken() -> None:
    with pytest.raises(CannotTake, match="no tool calls"):
        task_of(nemo(), "tictactoe", [])
