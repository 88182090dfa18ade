"""The part of `flywheel.core` that an export carries along, module by module.

An export runs where Flywheel is not installed, and two exports of different versions run side by side, so the modules
move into the export's own package and import each other relatively. Nothing else in them is changed.
"""

import ast
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

CORE = "flywheel.core"
FOLDER = Path(__file__).resolve().parents[1]
RUNTIME = (
    "flywheel.core.interop.bundle",
    "flywheel.core.interop.foreign_attempt",
    "flywheel.core.traces.openai_messages",
)
REQUIREMENTS = {
    "jsonschema": "jsonschema>=4.26",
    "orjson": "orjson>=3.11",
    "re2": "google-re2>=1.1.20251105",
    "referencing": "referencing>=0.36",
}
"""What its modules need of others, by the name that they import."""


def files(roots: Iterable[str] = RUNTIME) -> dict[str, bytes]:
    """The modules that these need, by their path below the core, their imports made relative."""
    found = {}
    for name in sorted(_closure(tuple(roots))):
        path = _path(name)
        assert path is not None, f"{name} was found by its file"
        below = path.relative_to(FOLDER)
        found[below.as_posix()] = _moved(path.read_text(encoding="utf-8"), len(below.parts)).encode()
    return found


def requirements(roots: Iterable[str] = RUNTIME) -> list[str]:
    """List the packages that these modules need. Raises KeyError for a library that nobody said the version of."""
    names = {
        imported.partition(".")[0]
        for module in _closure(tuple(roots))
        for imported, _ in _imports(module)
        if not imported.startswith("flywheel.")
    }
    return sorted(REQUIREMENTS[name] for name in names - sys.stdlib_module_names)


@cache
def _closure(roots: tuple[str, ...]) -> frozenset[str]:
    waiting, found = [*roots], set[str]()
    while waiting:
        name = waiting.pop()
        if name in found or _path(name) is None:
            continue
        found.add(name)
        if name != CORE:
            waiting.append(name.rpartition(".")[0])
        for module, names in _imports(name):
            if module == CORE or module.startswith(f"{CORE}."):
                waiting += [module, *(f"{module}.{each}" for each in names)]
    return frozenset(found)


def _path(name: str) -> Path | None:
    """The file of one of our modules; None for what is none, such as a function that is imported."""
    below = FOLDER.joinpath(*name.split(".")[2:])
    return next((path for path in (below / "__init__.py", below.with_suffix(".py")) if path.is_file()), None)


@cache
def _imports(name: str) -> list[tuple[str, tuple[str, ...]]]:
    """(module, names) of each import statement of one of our modules."""
    path = _path(name)
    assert path is not None
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.module, f"{name}: relative imports are not followed"
            found.append((node.module, tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
    return found


def _moved(source: str, dots: int) -> str:
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith(f"{CORE}."):
            at = node.lineno - 1
            below = "." * dots + node.module.removeprefix(CORE).removeprefix(".")
            lines[at] = lines[at].replace(f"from {node.module} ", f"from {below} ", 1)
    return "".join(lines)
