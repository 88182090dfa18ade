"""The dialects of single libraries, which they write beside or instead of the conventions, one module each.

A dialect is known by one of its `MARKS` among a span's attributes. `KEYS` are attributes that say a fact as they are;
they stand behind all conventions' names. `facts` and `content` add what takes more, and only what is not known yet.
"""

from collections.abc import Container, Mapping
from typing import Any, Protocol

from flywheel.core.traces import Kind
from flywheel.trajectories.formats.dialects import langfuse, langsmith, logfire, mlflow, traceloop, vercel
from flywheel.trajectories.formats.otlp.spans import Content, Facts, Span


class Dialect(Protocol):
    MARKS: tuple[str, ...]
    SCOPE: str
    """The name of the instrumentation scope by which a span without marks is known; empty where there is none."""
    KEYS: dict[str, tuple[str, ...]]
    METADATA: tuple[str, ...]
    """Attributes with such a prefix are metadata of the trajectory."""
    INPUTS: tuple[str, ...]
    """Prefixes of the attributes that hold what a model was given, and nothing of what it answered."""

    def kind(self, span: Span) -> Kind | None: ...
    def facts(self, span: Span, facts: Facts) -> None: ...
    def tools(self, span: Span) -> list[dict[str, Any]]: ...
    def content(self, span: Span, kind: Kind | None, read: Content) -> None: ...


DIALECTS: tuple[Dialect, ...] = (langfuse, langsmith, vercel, mlflow, traceloop, logfire)
"""In the order in which their marks are looked for and their keys count."""

_BY_MARK = {mark: dialect for dialect in DIALECTS for mark in dialect.MARKS}
_BY_SCOPE = {dialect.SCOPE: dialect for dialect in DIALECTS if dialect.SCOPE}
_NOISE = ("langsmith.metadata.ls_", "langsmith.metadata.LANGSMITH_", "langsmith.metadata.usage_metadata")

PREFIXES = tuple(prefix for dialect in DIALECTS for prefix in dialect.METADATA)
INPUTS = tuple(prefix for dialect in DIALECTS for prefix in dialect.INPUTS)
SCOPED_INPUTS = tuple(prefix for dialect in _BY_SCOPE.values() for prefix in dialect.INPUTS)
"""Those that may stand on a span without marks."""


def keys(fact: str) -> tuple[str, ...]:
    """The attributes in which dialects say this fact."""
    return tuple(key for dialect in DIALECTS for key in dialect.KEYS.get(fact, ()))


def of(names: Container[str]) -> Dialect | None:
    """Whose instrumentation wrote a span with attributes of these names, where it left its marks."""
    return next((dialect for mark, dialect in _BY_MARK.items() if mark in names), None)


def of_scope(scope: Mapping[str, Any]) -> Dialect | None:
    """Whose instrumentation wrote a span without marks, where its scope says so."""
    name = scope.get("name")
    return _BY_SCOPE.get(name) if isinstance(name, str) else None


def metadata(key: str) -> str:
    """The name of the metadata that an attribute with one of the `PREFIXES` holds, or nothing for mere noise."""
    if key.startswith(_NOISE):
        return ""
    return next(key[len(prefix) :] for prefix in PREFIXES if key.startswith(prefix))
