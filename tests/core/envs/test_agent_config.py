"""Attempts open with the agent's prompt and tools, and fail where calls are in a form that it does not read."""

from typing import Any

import pytest

from flywheel.core.envs import Task, build, episode
from flywheel.core.envs.agent_config import AgentConfig, first_request
from flywheel.core.envs.workplace import request_templates
from flywheel.core.traces import Message, ToolCall, Trace, call_forms

SEND = {
    "name": "send",
    "description": "Send it.",
    "parameters": {"type": "object", "properties": {"to": {"type": "string", "x-entity": True}}, "required": ["to"]},
}
TASK = Task("t-1", "Send it to Ann.", {"tool": "send", "arguments": {"to": "Ann"}})
RIGHT = Message("assistant", "", (ToolCall("c", "send", {"to": "Ann"}),))
RUBRIC = {"kind": "rubric", "parts": [{"name": "right", "type": "environment", "weight": 1.0}]}
GAME = Task("g-1", "X", {"best": "draw"}, {"random_share": 0.0, "seed": 1, "starts": "X"})


def env(form: str = "", prompt: str = "Be brief.", verifier: dict[str, Any] | None = None) -> Any:
    agent = AgentConfig(prompt, (SEND,), form)
    return build("tool_call", {"tools": [SEND]}, verifier or {"kind": "tool_call"}, agent=agent)


def judged(environment: Any, message: Message) -> Any:
    messages = [*environment.reset(TASK, 0), message]
    return environment.verifier(TASK)(Trace.from_messages("t", messages), TASK.target)


def test_the_agents_prompt_opens_a_task_of_its_failures() -> None:
    assert env().reset(TASK, 0) == [Message("system", "Be brief."), Message("user", "Send it to Ann.")]
    assert env(prompt="").reset(TASK, 0) == [Message("user", "Send it to Ann.")]


def test_a_prompt_that_an_old_version_froze_is_sent_no_more() -> None:
    old = build("tool_call", {"system_prompt": "Be long.", "tools": [SEND]}, {"kind": "tool_call"})
    assert old.reset(TASK, 0) == [Message("user", "Send it to Ann.")]


def test_a_worlds_rules_stand_after_the_agents_prompt_in_one_message() -> None:
    own = build("tictactoe", {}, {"kind": "tictactoe"}).reset(GAME, 0)
    asked = build("tictactoe", {}, {"kind": "tictactoe"}, agent=AgentConfig("Be brief.", (SEND,)))
    assert asked.reset(GAME, 0) == [Message("system", f"Be brief.\n\n{own[0].content}"), *own[1:]]
    assert asked.tools == []  # a world has tools of its own, or none


def test_an_agent_has_its_own_tools_where_tasks_are_made_of_its_failures() -> None:
    other = SEND | {"description": "Send it, and say to whom."}
    found = build("tool_call", {"tools": [SEND]}, {"kind": "tool_call"}, agent=AgentConfig("", (other,)))
    assert found.tools == [other]


@pytest.mark.parametrize("verifier", [None, RUBRIC])
@pytest.mark.parametrize("form", call_forms.LABELS)
@pytest.mark.parametrize("written", call_forms.LABELS)
def test_a_right_call_counts_in_the_agents_form_alone(form: str, written: str, verifier: dict[str, Any] | None) -> None:
    verdict = judged(env(form, verifier=verifier), call_forms.write(RIGHT, written))
    # A server may have read what is a model's own way to write calls.
    is_read = form == written or (written == "native" and call_forms.TEXT_FORMS[form].is_models)
    assert verdict.success is is_read
    assert verdict.parts["form"] == float(is_read)
    if not is_read:
        assert (
            verdict.reason
            == f"called as {call_forms.LABELS[written]}; this agent's program reads {call_forms.LABELS[form]}"
        )


@pytest.mark.parametrize("form", call_forms.LABELS)
def test_what_an_environment_calls_right_is_in_the_agents_form(form: str) -> None:
    environment = env(form)
    said = episode(environment, TASK, lambda messages: environment.solve(TASK, messages))[-1]
    assert call_forms.strange(said, form) == ""
    assert judged(environment, said).success is True


def test_an_agent_of_no_known_form_is_read_as_before() -> None:
    assert judged(env(), RIGHT).success is True
    assert judged(env(), call_forms.write(RIGHT, "json")).success is True
    assert "form" not in judged(env(), RIGHT).parts


def test_a_world_carries_out_calls_that_are_text_of_the_agents_form() -> None:
    task = Task("w-1", "x", {"calls": []}, {})
    call = Message("assistant", "", (ToolCall("c", "calendar.search_events", {"query": "x"}),))
    world = build("workplace", {"database": {}}, {"kind": "workplace"}, agent=AgentConfig("", (), "react"))
    own = build("workplace", {"database": {}}, {"kind": "workplace"})
    opening = own.reset(task, 0)
    native = own.respond(task, [*opening, call], 0)
    text = world.respond(task, [*opening, call_forms.write(call, "react")], 0)
    assert [message.content for message in text] == [message.content for message in native]


@pytest.mark.parametrize("form", ["", *call_forms.LABELS])
def test_a_world_of_several_turns_is_solved_in_every_form(form: str) -> None:
    (task,) = request_templates.generate(1, seed=3)
    world = build("workplace", {}, {"kind": "workplace"}, agent=AgentConfig("Be brief.", (), form))
    said = episode(world, task, lambda messages: world.solve(task, messages))
    assert world.verifier(task)(Trace.from_messages("t", said), task.target).success is True


@pytest.mark.parametrize("form", ["", *call_forms.LABELS])
def test_a_recorded_beginning_is_in_the_agents_text_form_and_native_calls_keep_their_results(form: str) -> None:
    begun = [Message("user", "Look."), RIGHT, Message("tool", "sent", (), "c", "send"), Message("user", "Again.")]
    state = {"messages": [message.to_json() for message in begun], "replies": []}
    task = Task("e-1", "Again.", {"wanted": [{"type": "calls", "calls": [TASK.target], "order": "given"}]}, state)
    env = build("episode", {"tools": [SEND]}, {"kind": "episode"}, agent=AgentConfig("", (SEND,), form))
    assert env.reset(task, 0)[1] == (call_forms.write(RIGHT, form) if form in call_forms.TEXT_FORMS else RIGHT)
    said = [*env.reset(task, 0), env.solve(task, env.reset(task, 0))]
    assert env.verifier(task)(Trace.from_messages("t", said), task.target).success is True


def test_first_requests_tell_prompts_tools_and_sampling_apart() -> None:
    opening, sampling = env().reset(TASK, 0), {"temperature": 1.0}
    one = first_request(opening, [SEND], sampling)
    assert one == first_request([*opening, Message("user", "another task")], [SEND], sampling)
    prompt = first_request(env(prompt="Be long.").reset(TASK, 0), [SEND], sampling)
    assert [part for part in one if one[part] != prompt[part]] == ["system prompt"]
    tools = first_request(opening, [SEND | {"description": "Now."}], sampling)
    assert [part for part in one if one[part] != tools[part]] == ["tools"]
    colder = first_request(opening, [SEND], {"temperature": 0.0})
    assert [part for part in one if one[part] != colder[part]] == ["sampling"]


def test_a_configuration_is_kept_and_read_back() -> None:
    agent = AgentConfig("Be brief.", (SEND,), "react")
    assert AgentConfig.from_json(agent.to_json()) == agent
