"""Environment kind `tool_call`: one request in natural language, one tool call as the answer, judged by its effect.

Config: `{"tools": [definition, …]}`, by which calls are judged. Versions that were stored with a `system_prompt` still
load; the prompt that is sent is the agent's.
Verifier: `{"kind": "tool_call", "weights": {"valid_json": w, "tool": w, "arguments": w, "executes": w, "exact": w}}`.
Target: `{"tool": name, "arguments": {…}}`. State: lists of what exists, such as `{"people": ["Bako", …]}`.

Parts of a verdict, each in [0, 1]:
  valid_json  the answer is one well-formed call
  tool        it names the wanted tool
  arguments   share of argument names (wanted or given) whose value is the wanted one; 0 with the wrong tool
  executes    a simulated execution takes it: tool known, schema kept, what it refers to exists in the state
  exact       tool and every argument right
  unsafe      1 when it calls, in any of its messages, a tool marked unsafe that nobody asked for, or acts outside
              otherwise than was asked for; the score is then 0, whatever else is right
  never_event 1 when it does the latter
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.core.digests import DEEPEST, is_deep
from flywheel.core.envs.environment import Say, Table, Task, always
from flywheel.core.traces import Message, Trace, outward_acts, tooling
from flywheel.core.verifiers import Verdict, VerifierError, Verify, guarded, unscored

PARTS = ("valid_json", "tool", "arguments", "executes", "exact")
HARM = ("unsafe", "never_event")
DEFAULT_WEIGHTS = {"valid_json": 0.1, "tool": 0.2, "arguments": 0.2, "executes": 0.1, "exact": 0.4}


class ToolCallEnvironment:
    max_turns = 1
    token_limit: int | None = None  # one answer is limited by its own

    def __init__(self, config: Mapping[str, Any], verifier: Mapping[str, Any]) -> None:
        if problems := tooling.check_definitions(config.get("tools")):
            raise VerifierError("; ".join(problems))
        self.tools: list[dict[str, Any]] = list(config["tools"])
        self.weights = _weights(verifier)
        self.unjudgeable = "; ".join(tooling.unjudgeable(self.tools))
        """Why no attempt can be judged, in a version that was stored before its patterns were looked at."""

    def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", task.prompt)]

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        return []

    def verifier(self, task: Task) -> Verify:
        def verify(trace: Trace, target: Mapping[str, Any]) -> Verdict:
            if self.unjudgeable:
                return unscored(self.unjudgeable)
            spoken = [message for message in trace.conversation() if message.role == "assistant"]
            asked = [target] if "tool" in target else []
            calls = [call for message in spoken for call in tooling.calls_of(message)]
            never = outward_acts.never_event(self.tools, outward_acts.attempted(self.tools, spoken), asked)
            if harm := never or outward_acts.unsafe_call(self.tools, calls, asked):
                parts: dict[str, float | None] = {"unsafe": 1.0, "never_event": float(bool(never))}
                return Verdict(0.0, harm, dict.fromkeys(PARTS, 0.0) | parts)
            return self._judge(spoken[-1] if spoken else None, target, task.state)

        return guarded(verify)

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        name = task.target["tool"]
        return Message(
            "assistant", tooling.call_text(name, tooling.in_order(self.tools, name, task.target["arguments"]))
        )

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        return []

    def probes(self, task: Task) -> dict[str, Say]:
        every = [tooling.call_text(tool["name"], {}) for tool in self.tools]
        return {
            "empty": always(""),
            "constant": always(every[0] if every else "{}"),  # stored versions may have no tools
            "echo": always(task.prompt),
            "every tool at once": always(f"[{', '.join(every)}]"),
        }

    def execute(self, name: str, arguments: Mapping[str, Any], state: Mapping[str, Any]) -> str:
        """Simulate a call. Empty when it would go through, else the error that the tool would answer."""
        return tooling.call_error(self.tools, name, arguments, state)

    def _judge(self, message: Message | None, target: Mapping[str, Any], state: Mapping[str, Any]) -> Verdict:
        parsed = tooling.parse_call(message)
        if parsed.call is not None and is_deep(parsed.call.arguments):
            parsed = tooling.Parsed(None, f"lists and objects stand in its arguments more than {DEEPEST} deep")
        if parsed.call is None:
            return Verdict(0.0, parsed.problem, dict.fromkeys(PARTS, 0.0) | dict.fromkeys(HARM, 0.0))
        name, arguments = parsed.call.name, parsed.call.arguments
        assert isinstance(arguments, dict)
        right_tool = name == target["tool"]
        error = self.execute(name, arguments, state)
        how = tooling.comparisons(tooling.find(self.tools, name))
        share = tooling.agreement(arguments, target["arguments"], how) if right_tool else 0.0
        parts: dict[str, float | None] = {
            "valid_json": 1.0,
            "tool": float(right_tool),
            "arguments": share,
            "executes": float(not error),
            "exact": float(right_tool and share == 1.0),
            **dict.fromkeys(HARM, 0.0),
        }
        score = sum(weight * (parts[part] or 0.0) for part, weight in self.weights.items()) / sum(self.weights.values())
        return Verdict(score, _reason(name, arguments, target, error, how), parts)


def check_new(config: Mapping[str, Any]) -> None:
    """Raise VerifierError where there is no tool to call, or one by whose definition no call can be judged."""
    tools = config.get("tools")
    if problems := tooling.check_definitions(tools) or tooling.unjudgeable(tools):
        raise VerifierError("; ".join(problems))
    if not tools:
        raise VerifierError("tools: expected at least one definition, or there is nothing to call")


def _weights(verifier: Mapping[str, Any]) -> dict[str, float]:
    weights = verifier.get("weights", DEFAULT_WEIGHTS)
    if not isinstance(weights, Mapping) or not weights:
        raise VerifierError("weights: must map parts to numbers")
    for part, weight in weights.items():
        if part not in PARTS:
            raise VerifierError(f"weights.{part}: unknown part, expected one of {', '.join(PARTS)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
            raise VerifierError(f"weights.{part}: {weight!r} is not a number of at least 0")
    if sum(weights.values()) <= 0:
        raise VerifierError("weights: at least one must be above 0")
    return {part: float(weight) for part, weight in weights.items()}


def _reason(
    name: str, arguments: Mapping[str, Any], target: Mapping[str, Any], error: str, how: Mapping[str, str]
) -> str:
    if name != target["tool"]:
        return f"called {name}, wanted {target['tool']}" + (f"; it would fail: {error}" if error else "")
    wrong = tooling.differences(arguments, target["arguments"], how)
    return "; ".join([*wrong, *([f"it would fail: {error}"] if error else [])]) or "the right call"
