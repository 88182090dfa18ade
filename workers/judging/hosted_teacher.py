"""A run's teacher at somebody else's endpoint, asked how likely it finds tokens that the policy wrote. No Django here.

Its address and its key stay in this process: the trainer names it by the digest of its version. What a server says of
itself goes out without the key, should it repeat that.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from workers.engines.openai_engine import Failed
from workers.engines.vllm_sampler import Read, TokenReader
from workers.judging.call_report import CallReport

TIMEOUT_S, PATIENCE_S = 120.0, 300.0
"""Of a reading, and how long a server that has answered may be away, or full, before it is given up."""
QUIET_S = 30.0
"""Pauses are shorter, so one that comes later is of another spell of waiting."""
HIDDEN = "(the key)"


class TeacherError(RuntimeError):
    """The teacher cannot be asked, or tells nothing that could be learnt."""


class HostedTeacher:
    """Safe for many threads."""

    def __init__(self, digest: str, endpoint: Mapping[str, Any], report: Mapping[str, Any] | None = None) -> None:
        """`digest` is that of its version; `endpoint` is the version's own, with its key and its prices. `report` is
        what an earlier owner of the run has left. Raises EngineError."""
        options = {"timeout_s": TIMEOUT_S, "patience_s": PATIENCE_S, **endpoint}
        for name in ("kind", "chat_template_kwargs"):  # it is given tokens, which no template makes
            options.pop(name, None)
        self.digest, self.model, self._key = digest, str(endpoint["model"]), str(endpoint.get("api_key", ""))
        self._reader = TokenReader(**options, on_wait=self._wait)
        self._calls = CallReport(report)
        self._lock = threading.Lock()
        self._waits: list[str] = []
        self._quiet_until = 0.0

    def room(self) -> int | None:
        """Tokens that it can read at once; None where its server does not say. Raises TeacherError."""
        try:
            most = self._reader.most_tokens(self.model)
        except Failed as failure:
            if failure.status:  # it answers, and has no such list
                return None
            raise TeacherError(self._words(failure)) from None
        return None if most is None else most - 1  # for the token behind them that it writes

    def read(self, tokens: Sequence[int]) -> Read:
        """Let it read these tokens. Raises TeacherError."""
        try:
            found = self._reader.read(self.model, tokens)
        except Failed as failure:
            self._calls.failed()
            raise TeacherError(self._words(failure)) from None
        self._calls.answered(self.model, found.tokens_in, found.tokens_out, found.cost_usd)
        return found

    @property
    def report(self) -> dict[str, Any]:
        """Requests, tokens and dollars so far; empty while nothing was asked. JSON."""
        return self._calls.to_json()

    def waits(self) -> list[str]:
        """The spells in which it was waited for since this was asked last."""
        with self._lock:
            found, self._waits = self._waits, []
        return found

    def close(self) -> None:
        """Ask nothing more."""
        self._reader.close()

    def _wait(self, failure: Failed) -> None:
        with self._lock:
            now = time.monotonic()
            if now >= self._quiet_until:
                limit = self._reader.patience_s
                self._waits.append(f"waiting for the teacher {self.model}, at most {limit:g} s: {self._words(failure)}")
            self._quiet_until = now + QUIET_S

    def _words(self, failure: Failed) -> str:
        return str(failure).replace(self._key, HIDDEN) if self._key else str(failure)
