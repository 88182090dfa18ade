"""Requests, tokens and dollars that a model took which a run asks beside its policy. No Django here."""

import threading
from collections.abc import Mapping
from typing import Any

from flywheel.core.verifiers import judge_prompts

COUNTS = ("requests", "tokens_in", "tokens_out")


class CallReport:
    """Safe for many threads."""

    def __init__(self, report: Mapping[str, Any] | None = None) -> None:
        """`report` is what an earlier owner of the run has left: its counts go on."""
        before = report or {}
        self._lock = threading.Lock()
        self._models: list[str] = list(before.get("models", ()))
        self._counts: dict[str, int | None] = {key: before.get(key, 0) for key in COUNTS}
        """Tokens are None once an answer came that does not tell them: no budget of tokens is kept by halves."""
        self._cost_usd: float | None = before.get("cost_usd") if before else 0.0
        """None once an answer came whose cost nobody knows."""

    def answered(self, model: str, tokens_in: int | None, tokens_out: int | None, cost_usd: float | None) -> None:
        with self._lock:
            self._count(tokens_in, tokens_out)
            self._cost_usd = None if self._cost_usd is None or cost_usd is None else self._cost_usd + cost_usd
            if (name := judge_prompts.plain(model)) not in self._models:
                self._models.append(name)

    def failed(self, tokens_in: int | None = None, tokens_out: int | None = None) -> None:
        """Count a request without an answer, which took nothing unless somebody says so."""
        with self._lock:
            self._count(tokens_in or 0, tokens_out or 0)

    def to_json(self) -> dict[str, Any]:
        """Who answered, and what it took; empty while nothing was asked."""
        with self._lock:
            if not self._counts["requests"]:
                return {}
            return {"models": list(self._models), **self._counts, "cost_usd": self._cost_usd}

    def _count(self, tokens_in: int | None, tokens_out: int | None) -> None:
        for name, taken in zip(COUNTS, (1, tokens_in, tokens_out), strict=True):
            known = self._counts[name]
            self._counts[name] = None if known is None or taken is None else known + taken
