from flywheel.core.traces import Message, Step, Trace
from flywheel.core.traces.tooling import call_text
from flywheel.trajectories.detail.transcript import conversation_of
from flywheel.trajectories.models import Source
from flywheel.trajectories.store.merge import store
from tests.conftest import Cast


def test_a_call_that_was_written_as_text_and_then_executed_is_shown_once(cast: Cast) -> None:
    arguments = {"person": "Bako", "day": "friday"}
    answer = Message("assistant", call_text("calendar.create_event", arguments))
    steps = [
        Step("a" * 16, "assistant", input=[Message("user", "Meet Bako on friday")], output=[answer]),
        Step("b" * 16, "tool", tool_name="calendar.create_event", arguments=arguments, result={"status": "done"}),
    ]
    batch = store(cast.project, [Trace("c" * 32, steps)], source=Source.PRODUCTION, format="otlp")
    assert batch.inserted == 2
    row = cast.project.trajectories.get()
    assert [turn.kind for turn in conversation_of(row)] == ["user", "call", "observation"]
