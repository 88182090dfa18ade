"""The turns of a conversation, as pages show them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flywheel.trajectories.detail import value_tree
from flywheel.trajectories.models import Step

TEXT_SHOWN = 20_000
"""Characters of one message; the whole of it is a file."""


@dataclass(slots=True)
class Run:
    """Calls of one tool with their results, and nothing said between them."""

    name: str
    calls: int = 0
    errors: int = 0
    took_ms: float | None = None
    spans: frozenset[str] = frozenset()


@dataclass
class Turn:
    """One message, call, observation or intervention."""

    kind: str
    """`system`, `user`, `assistant`, `call`, `observation`, `intervention`, `error`"""
    trace_id: str
    span_id: str
    position: int = -1
    """Its step's; -1 for what belongs to none."""
    text: str = ""
    name: str = ""
    """The tool's, or what the intervention was."""
    by: str = ""
    arguments: Any = None
    """Of a call: an object, or what the model wrote when that is none."""
    reasoning: str = ""
    step: Step | None = None
    """On the turn that stands for its step: with times, tokens, cost, finish reason, error."""
    index: int = 0
    """Its place among the turns of its step."""
    same_as: "Turn | None" = None
    """An earlier turn that says the very same."""
    opens: Run | None = None
    """On the first turn of a run of calls."""
    closes: bool = False
    """On the last one."""
    is_whole: bool = False
    """Whether what is long is shown all the same."""
    as_text: bool = False
    """Whether JSON is shown as it was written."""

    @property
    def is_broken(self) -> bool:
        """A call whose arguments are no object."""
        return self.kind == "call" and isinstance(self.arguments, str)

    @property
    def content(self) -> Any:
        """The arguments of a call, or the text."""
        return self.text if self.arguments is None else self.arguments

    @property
    def has_tree(self) -> bool:
        return self.kind in ("call", "observation") and bool(value_tree.held_by(self.content))

    @cached_property
    def tree(self) -> value_tree.Tree | None:
        """The content of a call or a result as a tree, where it is JSON."""
        if self.as_text or not self.has_tree:
            return None
        return value_tree.tree_of(self.content, value_tree.WHOLE if self.is_whole else value_tree.BRIEF)

    @property
    def shown(self) -> str:
        """The text, or its beginning."""
        return self._beginning(self.text)

    @property
    def shown_reasoning(self) -> str:
        return self._beginning(self.reasoning)

    @property
    def written(self) -> Any:
        """Arguments as text, or their beginning."""
        return self._beginning(self.arguments) if isinstance(self.arguments, str) else self.arguments

    @property
    def is_cut(self) -> bool:
        """Whether only the beginning of some part is shown."""
        if self.tree is not None:
            return self.tree.is_cut
        texts = (self.text, self.reasoning, self.arguments if isinstance(self.arguments, str) else "")
        return any(len(text) > self._shown for text in texts)

    @property
    def _shown(self) -> int:
        return value_tree.WHOLE.text if self.is_whole else TEXT_SHOWN

    def _beginning(self, text: str) -> str:
        return text if len(text) <= self._shown else f"{text[: self._shown]}…"
