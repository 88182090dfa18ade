"""An environment of any kind whose attempts a rubric judges instead of the kind's own verifier."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flywheel.core.envs.agent_config import Configured
from flywheel.core.envs.environment import Environment, Say, Table, Task
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import Runners, Verdict, VerifierError, Verify, guarded
from flywheel.core.verifiers.rubric import Rubric
from flywheel.core.verifiers.rubric_parts import Case


class Judged:
    """Plays as `own` does; `own`'s verifier is one part of the rubric, where the rubric has it."""

    def __init__(self, own: Environment, rubric: Rubric, runners: Runners) -> None:
        check_parts(own, rubric)
        self.own, self.rubric, self.runners = own, rubric, runners
        self.max_turns, self.token_limit = own.max_turns, own.token_limit
        self.tools, self.weights = own.tools, rubric.weights

    def reset(self, task: Task, seed: int) -> list[Message]:
        return self.own.reset(task, seed)

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        return self.own.respond(task, messages, seed)

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        return self.own.solve(task, messages)

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        return self.own.state(task, messages)

    def probes(self, task: Task) -> dict[str, Say]:
        return self.own.probes(task)

    def verifier(self, task: Task) -> Verify:
        own = self.own.verifier(task)

        def verify(trace: Trace, target: Mapping[str, Any]) -> Verdict:
            return self.rubric.verdict(case_of(self.own, task, trace, own(trace, target), self.runners))

        return guarded(verify)


def check_parts(env: Environment, rubric: Rubric) -> None:
    """Raise VerifierError for a part that this environment has nothing for."""
    own = env.own if isinstance(env, Judged) else env
    for number, part in enumerate(rubric.parts):
        if part.type == "state" and not hasattr(own, "difference"):
            raise VerifierError(f"parts.{number}.type: this environment keeps no state that could be compared")


def case_of(
    env: Environment, task: Task, trace: Trace, own: Verdict, runners: Runners, tokens: int | None = None
) -> Case:
    """An attempt in this environment, whose own verifier has said this of it, before a rubric. `tokens`: how many the
    policy wrote, where they were counted."""
    if isinstance(env, Judged):
        env = env.own
    written = trace.conversation()
    difference: Callable[..., tuple[Counter[Any], Counter[Any]]] | None = getattr(env, "difference", None)
    if isinstance(env, Configured):
        trace = env.readable_trace(trace)
    changed = partial(difference, task, trace.conversation(), task.target) if difference else None
    return Case(trace, task.target, own, changed, runners, tokens, written, env.tools)
