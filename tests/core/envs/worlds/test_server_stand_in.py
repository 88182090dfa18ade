"""A tool server that stands in for tools in a replay: which settings are taken, what is sent, and who is needed."""

from typing import Any

import pytest

from flywheel.core import envs
from flywheel.core.envs import Task, kinds
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.envs.replay.episode_replay import ERROR, MARK
from flywheel.core.envs.worlds.own_world import Played
from flywheel.core.envs.worlds.server_stand_in import SERVED
from flywheel.core.envs.worlds.server_world import ServerEpisode
from flywheel.core.envs.worlds.stand_ins import alone, server_of
from flywheel.core.traces import Message, ToolCall
from flywheel.core.verifiers import Runners, VerifierError, WorldError
from tests.shop_server import TOOLS

MAIL: dict[str, Any] = {"name": "mail", "parameters": {"type": "object"}}
SERVER: dict[str, Any] = {"base_url": "http://shop:8000", "tools": TOOLS}
CONFIG: dict[str, Any] = {"tools": [*TOOLS, MAIL], "judged": "end", "unknown": "server", "server": SERVER}
SEVEN, EIGHT = {"order_id": "7"}, {"order_id": "8"}
BEGUN = [
    Message("user", "Cancel order 7."),
    Message("assistant", "", (ToolCall("a", "cancel", SEVEN), ToolCall("b", "mail", {}))),
    Message("tool", "done", (), "a", "cancel"),
    Message("tool", "sent", (), "b", "mail"),
    Message("user", "And how is it now?"),
]
LATER = {"tool": "cancel", "arguments": EIGHT, "result": "8 is done"}
TASK = Task(
    "t",
    BEGUN[-1].content,
    {"wanted": [{"type": "words", "text": "cancelled"}]},
    {"messages": [each.to_json() for each in BEGUN], "replies": [LATER], "world": {"orders": {"8": {}}}},
)


class Fake:
    """A server that says which of its calls this is."""

    def __init__(self) -> None:
        self.seen: list[ServerEpisode] = []

    def play(self, episode: ServerEpisode) -> Played:
        self.seen.append(episode)
        return Played(tuple(f"{place}" if said is None else said for place, (*_, said) in enumerate(episode.calls)), 0)


def built(runners: Runners | None = None, agent: AgentConfig | None = None, **config: Any) -> envs.Environment:
    return envs.build("episode", CONFIG | config, {"kind": "episode"}, runners or Runners(), agent)


def said(*calls: tuple[str, Any]) -> Message:
    return Message("assistant", "", tuple(ToolCall(f"c{n}", *call) for n, call in enumerate(calls)))


def answers(env: envs.Environment, *turns: Message) -> list[str]:
    seen = env.reset(TASK, 0)
    for turn in turns:
        seen = [*seen, turn, *env.respond(TASK, [*seen, turn], 0)]
    return [each.content for each in seen[len(BEGUN) :] if each.role == "tool"]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"server": None}, 'server: expected {"base_url": address}'),
        ({"server": SERVER | {"shows_state": True}}, "server.shows_state: there is no such setting"),
        ({"server": SERVER | {"base_url": "http://169.254.169.254"}}, "server.base_url: it is link-local"),
        ({"server": SERVER | {"base_url": "http://me:secret@shop"}}, "server.base_url: leave out logins"),
        ({"server": SERVER | {"protocol": "mcp", "resets": True}}, "server.resets: an MCP server has no way"),
        ({"server": SERVER | {"tools": [MAIL | {"name": "fax"}]}}, "server.tools: this environment has no tool fax"),
        ({"tools": [], "server": {"base_url": "http://shop"}}, "server.tools: none is there"),
        ({"unknown": "stub"}, "server: a tool server answers with"),
        ({"judged": "next"}, "judged: at the next action nothing is answered, by a tool server neither"),
    ],
)
def test_settings_that_are_wrong_are_refused_by_name(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(VerifierError) as refused:
        built(**config)
    assert str(refused.value).startswith(problem)
    assert kinds.needs("episode", CONFIG, {"kind": "episode"}) == {"server"}
    kinds.check_new("episode", CONFIG)


def test_its_definitions_are_those_of_the_environment_where_it_has_none_of_its_own() -> None:
    fake = Fake()
    env = built(Runners(server=fake), server={"base_url": "http://shop:8000"})
    assert answers(env, said(("mail", {"to": "Ann"}))) == [f"{SERVED}0"]
    assert [tool["name"] for tool in fake.seen[0].tools] == ["cancel", "get_order", "mail"]


def test_a_server_that_cannot_begin_anew_is_sent_what_nobody_recorded_and_no_more() -> None:
    fake = Fake()
    found = answers(
        built(Runners(server=fake)),
        said(("cancel", EIGHT), ("get_order", SEVEN), ("mail", {"to": "Ann"})),
        said(("cancel", SEVEN)),
        said(("get_order", EIGHT)),
    )
    assert found == ["8 is done", f"{SERVED}0", MARK + ERROR, "done", f"{SERVED}1"]
    assert [episode.calls for episode in fake.seen] == [
        (("get_order", SEVEN, None),),
        (("get_order", SEVEN, "0"), ("get_order", EIGHT, None)),
    ]
    assert all(not episode.retold for episode in fake.seen)


def test_one_that_begins_anew_is_brought_to_where_the_recorded_run_was() -> None:
    fake = Fake()
    env = built(Runners(server=fake), server=SERVER | {"resets": True})
    answers(env, said(("get_order", SEVEN), ("cancel", EIGHT)), said(("get_order", EIGHT)))
    first, second = fake.seen
    assert first.calls == (("cancel", SEVEN, ""), ("get_order", SEVEN, None), ("cancel", EIGHT, ""))
    assert first.retold == {0, 2}
    assert second.calls[1:] == (("get_order", SEVEN, "1"), ("cancel", EIGHT, ""), ("get_order", EIGHT, None))
    assert second.retold == {0, 2}
    assert (first.prompt, first.start) == ("And how is it now?", {"orders": {"8": {}}})


def test_what_does_not_fit_its_definition_is_refused_here_and_never_sent() -> None:
    fake = Fake()
    env = built(Runners(server=fake))
    found = answers(env, said(("get_order", {"order_id": 7}), ("get_order", "{"), *[("get_order", SEVEN)] * 20))
    assert found[0].startswith(f"{SERVED}Error: order_id: 7 is not of type 'string'")
    assert found[1] == f"{SERVED}Error: the arguments are not a JSON object."
    assert found[-1] == f"{SERVED}Error: too many calls at once."
    answers(env, said(("get_order", {"order_id": 7})), said(("get_order", SEVEN)))
    assert fake.seen[-1].calls == (("get_order", SEVEN, None),)


def test_an_agent_in_its_own_form_is_understood() -> None:
    fake = Fake()
    env = built(Runners(server=fake), AgentConfig("Be kind.", (*TOOLS, MAIL), "json"))
    call = Message("assistant", '{"tool": "get_order", "arguments": {"order_id": "7"}}')
    seen = env.reset(TASK, 0)
    seen += [call, *env.respond(TASK, [*seen, call], 0)]
    assert seen[-1].content == f"{SERVED}0"
    env.respond(TASK, [*seen, call], 0)
    assert fake.seen[-1].calls == (("get_order", SEVEN, "0"), ("get_order", SEVEN, None))


def test_without_a_worker_nobody_answers_in_its_place() -> None:
    assert answers(built(), said(("cancel", EIGHT), ("mail", {"to": "Ann"}))) == ["8 is done", MARK + ERROR]
    with pytest.raises(WorldError, match="only a worker asks"):
        answers(built(), said(("get_order", SEVEN)))


def test_an_environment_can_be_had_in_which_it_is_not_asked() -> None:
    fake = Fake()
    env = built(Runners(server=fake), AgentConfig("Be kind.", (*TOOLS, MAIL), ""))
    assert (server := server_of(env)) is not None
    assert server.base_url == "http://shop:8000"
    assert answers(alone(env), said(("get_order", SEVEN))) == [MARK + ERROR]
    assert not fake.seen
    assert answers(env, said(("get_order", SEVEN))) == [f"{SERVED}0"], "the other is as it was"
