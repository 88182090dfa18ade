"""A recorded result becomes the run that it is, whatever its agent or framework wrote."""

import pytest

from flywheel.core.traces import Trace
from tests.workbench import outcomes
from tests.workbench.held_out import AGENTS, KIN, Run, atif, by_agent, by_detector

RESPONSE = (
    "{'input': 'Who?', 'output': 'Kofi.', 'intermediate_steps': [(AgentAction(tool='find', tool_input={'name': 'kofi'},"
    " log='I look.'), array(['kofi@x.org'], dtype=object)), (AgentAction(tool='None', tool_input='hm', log=''), "
    "[{'phone': nan}])]}"
)


def run(agent: str, *, fails: bool) -> Run:
    return Run(agent, "email", "t", Trace("a"), fails, side_effects=False, proposals=[], every=[])


def test_a_result_is_read_with_what_its_framework_put_around() -> None:
    _, asked, found, tried, said = atif("Who?", RESPONSE, "", "r", "a")["steps"]
    assert (asked["message"], found["message"], said["message"]) == ("Who?", "I look.", "Kofi.")
    assert found["tool_calls"][0]["arguments"] == {"name": "kofi"}
    assert found["observation"]["results"][0]["content"] == '["kofi@x.org"]'
    assert tried["tool_calls"][0]["arguments"] == {"input": "hm"}
    assert tried["observation"]["results"][0]["content"] == '[{"phone": null}]'


@pytest.mark.parametrize("response", ["", "Context window exceeded", "{'output': 1}", "{'output': open('x')}"])
def test_what_is_no_data_is_the_agents_only_message(response: str) -> None:
    steps = atif("Who?", response, "", "r", "a")["steps"]
    assert [step["message"] for step in steps[1:]] == ["Who?", response]


def test_every_agent_has_a_line_and_a_detector_that_says_nothing_has_none() -> None:
    found = [run(agent, fails=number % 2 == 0) for number, agent in enumerate([*AGENTS, *KIN])]
    assert len(by_agent(found).splitlines()) == 2 + len(AGENTS) + 2 + len(KIN)
    assert len(by_detector(found).splitlines()) == 2


def test_no_agent_is_held_out_that_was_looked_at() -> None:
    seen = {path.name.partition("-")[2] for path in outcomes.RUNS.glob("*.atif.jsonl")}
    assert not {f"{agent}.atif.jsonl" for agent in (*AGENTS, *KIN)} & seen
