"""GRPO practises in an assistant's world over several turns, and is rewarded by what an attempt leaves behind."""

from typing import Any

from flywheel.core.envs import Task, build
from flywheel.core.traces import Message
from flywheel.core.traces.tooling import call_text
from tests.workers.trainers.cast import Make, Start

WORKPLACE: dict[str, Any] = {
    "kind": "workplace",
    "config": {"system_prompt": "Do it.", "max_turns": 3},
    "verifier": {"kind": "workplace"},
}
ENV = build(**WORKPLACE)


def deletion(number: int) -> Task:
    calls = [{"tool": "calendar.delete_event", "arguments": {"event_id": f"{number:08}"}}]
    return Task(f"work-{number}", f"delete event {number}", {"calls": calls}, {"world": 7}, f"c-{number}")


def demonstrations(task: Task) -> list[dict[str, Any]]:
    """The right call, and after its answer the last word, as rows for SFT."""
    asked = ENV.reset(task, 0)
    (call,) = task.target["calls"]
    called = Message("assistant", call_text(call["tool"], call["arguments"]))
    played = [*asked, called, *ENV.respond(task, [*asked, called], 0)]
    return [
        {"task_id": task.id, "prompt": [m.to_openai() for m in before], "completion": [said.to_openai()]}
        for before, said in ((asked, called), (played, Message("assistant", "Done.")))
    ]


def test_attempts_are_rewarded_by_what_they_leave_behind(make: Make, start: Start) -> None:
    tasks = [deletion(number) for number in range(1, 7)]
    shown = [row for task in tasks for row in demonstrations(task)]
    taught = make(
        "sft", name="taught", train=shown, steps=70, checkpoint_every=70, held_out=False, environment=WORKPLACE,
        settings={"max_completion_length": 64},
    )  # fmt: skip
    assert start(taught).wait() == 0, taught.errors()
    rows = [task.to_json() for task in tasks]
    settings = {"batch_size": 16, "num_generations": 4, "max_completion_length": 64, "temperature": 0.5}
    run = make(
        "grpo", on=taught.path / "final", train=rows[:4], held_out=rows[4:], steps=3, eval_every=3,
        environment=WORKPLACE, settings=settings,
    )  # fmt: skip
    assert start(run).wait() == 0, run.errors()
    steps = run.metrics().values()
    assert [metrics["unscored"] for metrics in steps] == [0, 0, 0]
    assert all(1 < metrics["turns_mean"] <= 3 for metrics in steps)
    assert {"reward/outcome", "reward/changes", "reward/unsafe"} <= set(run.metrics()[1])
    assert any(metrics["reward_std"] > 0 and metrics["grad_norm"] > 0 for metrics in steps), steps
    assert [(row["n"], row["unscored"]) for row in run.events("eval")] == [(2, 0), (2, 0)]
