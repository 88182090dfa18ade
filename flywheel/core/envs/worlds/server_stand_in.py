"""A team's own tool server that stands in for tools in a replay: it answers what was never recorded
(`replay.episode_replay`).

Settings: `{"base_url", "protocol", "api_key_env", "resets", "tools"}`, as `server_world` has them; without tools those
of the environment, which the server has to have then as they stand there.

Where the server begins anew, each attempt has a session in which every call is carried out, those of the beginning and
those that a recorded result answers too: what was recorded as ordered is then ordered there. Any other server is sent
nothing but the calls that nobody recorded, for the others would really be done once more. Nothing is asked twice: what
it has answered stands in the messages.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flywheel.core.envs.environment import Task
from flywheel.core.envs.replay.episode_replay import Waiting, answered, beginning
from flywheel.core.envs.worlds.own_world import Played
from flywheel.core.envs.worlds.server_world import KIND, Server, ServerEpisode, ServerWorld
from flywheel.core.traces import ToolCall
from flywheel.core.verifiers import NO_RUNNERS, Runners, VerifierError, WorldError

SERVED = "[from the tool server] "
"""Before an answer that a server gave."""
SETTINGS = ("base_url", "protocol", "api_key_env", "resets", "tools")
Sent = tuple[str, Mapping[str, Any], str | None]


class ServerStandIn:
    mark = SERVED

    def __init__(self, settings: Any, tools: Sequence[Mapping[str, Any]], runners: Runners = NO_RUNNERS) -> None:
        """Raises VerifierError, which names the setting."""
        self.world = _world(settings, tools)
        self.runners = runners
        self.names: Collection[str] = {tool["name"] for tool in self.world.tools}

    @property
    def server(self) -> Server:
        return self.world.server

    def answers(self, task: Task, waiting: Waiting) -> list[str | None]:
        last = len(waiting.turns) - 1
        sent: list[Sent] = []
        retold: set[int] = set()
        found: list[str | None] = [None] * len(waiting.results)
        asked: dict[int, int] = {}
        """The place among the calls that are sent, by that in the last message."""
        for turn, (calls, own) in enumerate(zip(waiting.turns, waiting.own, strict=True)):
            for number, (call, said) in enumerate(zip(calls, own, strict=True)):
                is_open = turn == last and waiting.results[number] is None and call.name in self.names
                refusal = self.world.refusal(call, number) if call.name in self.names else "another's"
                if is_open and refusal:
                    found[number] = refusal
                if not isinstance(call.arguments, dict) or (refusal and said in (None, refusal)):
                    continue
                if is_open:
                    asked[number] = len(sent)
                    sent.append((call.name, call.arguments, None))
                elif said is not None:
                    sent.append((call.name, call.arguments, said))
                elif self.server.resets:
                    retold.add(len(sent))
                    sent.append((call.name, call.arguments, ""))
        if asked:
            played = self._play(task, sent, retold)
            found = [played.answers[asked[n]] if n in asked else text for n, text in enumerate(found)]
        return found

    def begin(self, task: Task) -> None:
        """Begin a session as an attempt does. Raises WorldError, also where the server has other tools by now."""
        begun = [ToolCall("", tool, dict(given)) for tool, given, _ in answered(beginning(task))]
        known = [call for call in begun if call.name in self.names and not self.world.refusal(call, 0)]
        sent: list[Sent] = [(call.name, call.arguments, "") for call in known if isinstance(call.arguments, dict)]
        sent = sent if self.server.resets else []
        self._play(task, sent, set(range(len(sent))))

    def _play(self, task: Task, sent: Sequence[Sent], retold: set[int]) -> Played:
        if self.runners.server is None:
            raise WorldError("a tool server answers what was never recorded, which only a worker asks", "refused")
        start = task.state.get("world") or None
        episode = ServerEpisode(
            self.server, tuple(self.world.tools), 0, task.prompt, start, tuple(sent), frozenset(retold)
        )
        played: Played = self.runners.server.play(episode)
        return played


class Unasked:
    """Answers in a server's place while trivial policies call tools: verdicts look at calls and words alone."""

    def play(self, episode: ServerEpisode) -> Played:
        return Played(tuple("Error: no server is asked here." for _ in episode.calls), None)


def _world(settings: Any, tools: Sequence[Mapping[str, Any]]) -> ServerWorld:
    if not isinstance(settings, Mapping):
        raise VerifierError('server: expected {"base_url": address}, with what it speaks and can')
    if odd := next((name for name in settings if name not in SETTINGS), None):
        raise VerifierError(f"server.{str(odd)[:100]}: there is no such setting, only {', '.join(SETTINGS)}")
    try:
        return ServerWorld({**settings, "tools": settings.get("tools") or list(tools)}, {"kind": KIND})
    except VerifierError as error:
        raise VerifierError(f"server.{error}") from None
