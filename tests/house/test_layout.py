"""The lay-out of the house: drawers that one can count, an order inside each room, names that say where a thing is."""

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_ENTRIES = 12
DJANGO = {"__init__", "__main__", "apps", "urls", "settings", "wsgi", "migrations", "management", "templatetags"}
"""Names that the framework or Python gives; a room has each of them once, whatever else is in it."""
DRAWERS = {"models", "pages", "api", "management", "templatetags"}
"""In them the same name means the same thing in every room."""
WHOLE = {"browser", "chaos", "house", "interop", "serving", "workbench", "benching", "tictactoe"}
"""Tests of several rooms at once, or of all of it from outside."""


@cache
def files() -> dict[str, Path]:
    """Dotted name → file, of `flywheel` and `workers` without migrations; a package by its own name."""
    paths = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "flywheel", "workers"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    python = [Path(path) for path in paths if path.endswith(".py") and "migrations" not in path]
    return {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): ROOT / path
        for path in python
        if (ROOT / path).exists()
    }


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Module → modules that it imports, anywhere in it."""
    edges: dict[str, frozenset[str]] = {}
    for name, path in files().items():
        targets = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    targets.add(inner if inner in files() else node.module)
        edges[name] = frozenset(target for target in targets if target in files() and target != name)
    return edges


def packages() -> list[str]:
    return sorted({name.rpartition(".")[0] for name in files()} - {""})


def children(package: str) -> set[str]:
    inside = [name for name in files() if name.startswith(f"{package}.")]
    return {name[len(package) + 1 :].split(".")[0] for name in inside}


def needs(package: str) -> dict[str, set[str]]:
    """Child → the other children of the package that it imports from."""
    edges: dict[str, set[str]] = defaultdict(set)
    start = len(package) + 1
    for module, targets in imports().items():
        if module.startswith(f"{package}."):
            child = module[start:].split(".")[0]
            edges[child] |= {target[start:].split(".")[0] for target in targets if target.startswith(f"{package}.")}
            edges[child].discard(child)
    return edges


def circle(edges: Mapping[str, set[str] | frozenset[str]]) -> list[str]:
    """Some circle of the graph, empty where it has none."""
    done: set[str] = set()
    for start in sorted(edges):
        path: list[str] = []
        todo: list[tuple[str, Iterator[str]]] = []
        if start not in done:
            path, todo = [start], [(start, iter(sorted(edges[start])))]
        while todo:
            node, following = todo[-1]
            target = next(following, None)
            if target is None:
                done.add(node)
                path.pop()
                todo.pop()
            elif target in path:
                return [*path[path.index(target) :], target]
            elif target not in done:
                path.append(target)
                todo.append((target, iter(sorted(edges.get(target, ())))))
    return []


@pytest.mark.parametrize("package", packages())
def test_a_package_has_at_most_twelve_entries(package: str) -> None:
    assert len(children(package) - DJANGO) <= MOST_ENTRIES, sorted(children(package) - DJANGO)


@pytest.mark.parametrize("package", packages())
def test_nothing_in_a_package_needs_what_needs_it(package: str) -> None:
    assert circle(needs(package)) == []


def test_no_files_need_each_other() -> None:
    assert circle(imports()) == []


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_module_name_occurs_once() -> None:
    names = Counter(
        name.rpartition(".")[2]
        for name, path in files().items()
        if path.name != "__init__.py" and not DRAWERS & set(name.split(".")) and path.stem not in DJANGO
    )
    assert [name for name, times in names.items() if times > 1] == []


def test_tests_stand_where_the_code_does() -> None:
    strays = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        parts = path.relative_to(ROOT / "tests").parts
        if parts[0] in WHOLE:
            continue
        base = ".".join(parts[:-1] if parts[0] == "workers" else ("flywheel", *parts[:-1]))
        name = path.stem.removeprefix("test_")
        homes = [base, *(f"{base}.{child}" for child in children(base))]
        if not any(name == home.rpartition(".")[2] or name.startswith(home.rpartition(".")[2] + "_") for home in homes):
            strays.append("/".join(parts))
    assert strays == []


def test_no_line_of_a_template_is_too_long_to_read() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)}"
        for path in sorted((ROOT / "templates").rglob("*.html"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 160
    ]
    assert long == []


def test_imports_stand_at_the_top() -> None:
    assert [name for name, path in files().items() if re.search(r"noqa:.*E402", path.read_text())] == []


EXEMPT_FROM_LENGTH = {
    # One idea each.
    "flywheel.core.evidence.gate.decision",
    "flywheel.core.evidence.statistics.estimates",
}


def test_no_comment_of_a_template_goes_over_two_lines() -> None:
    """Django shows such a comment; Jinja's templates may have them."""
    pages = [path for path in (ROOT / "templates").rglob("*.html") if "jinja" not in path.parts]
    shown = [path.name for path in pages for line in path.read_text().splitlines() if "{#" in line and "#}" not in line]
    assert pages
    assert shown == []


def test_no_file_is_longer_than_five_hundred_lines() -> None:
    long = {name: len(path.read_text().splitlines()) for name, path in files().items()}
    assert {name: lines for name, lines in long.items() if lines > 500 and name not in EXEMPT_FROM_LENGTH} == {}


def test_no_function_is_longer_than_sixty_lines_or_takes_more_than_eight_parameters() -> None:
    large = []
    for name, path in files().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args
                count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60 or count - ((arguments.args[:1] and arguments.args[0].arg in ("self", "cls")) or 0) > 8:
                    large.append(f"{name}.{node.name}")
    assert large == []


RENAMED = 24
"""Imports under another name, but for numpy's and pandas' own; the number only falls."""


def test_no_more_imports_are_renamed() -> None:
    renamed = []
    for name, path in files().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    if alias.asname not in (None, alias.name, "np", "pd"):
                        renamed.append(f"{name}: {alias.name} as {alias.asname}")
    assert len(renamed) == RENAMED, renamed


PRIVATE = re.compile(
    r"get_related_populators|get_compiler|sql_with_params|ModelState|fields_cache|pgconn|connection\.connection"
    r"|_get_ready_connection"
)
"""Parts of Django and psycopg that they do not document."""


def test_what_libraries_do_not_document_is_used_in_three_modules_alone() -> None:
    users = {name for name, path in files().items() if PRIVATE.search(path.read_text())}
    assert users == {"flywheel.edge.prepared_queries", "flywheel.server.gunicorn_settings", "flywheel.system.sql"}


BANNED = re.compile(r"^_?(said|told|asked|found|known|given|wanted)$")
"""They say that something is there, and not what it is."""


KEPT_NAMES = {
    "flywheel.core.evidence.contamination.Finding.asked",
    "flywheel.core.evidence.contamination.Pair.asked",
    "flywheel.environments.api.sandbox.LayerOut.found",
    "flywheel.environments.api.verifiers.VerifierTrialRow.wanted",
    "flywheel.failures.models.clusters.Sketch.asked",
    "flywheel.training.api.contamination.FindingOut.asked",
    "workers.engines.isolation.Difference.asked",
    "workers.sandbox.report.Layer.found",
}
"""Fields of the API, and of documents and parts that are stored under their names."""


def test_nothing_is_named_by_a_bare_participle() -> None:
    bad = []
    for name, path in files().items():
        if BANNED.match(name.rpartition(".")[2]):
            bad.append(name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and BANNED.match(node.name):
                bad.append(f"{name}.{node.name}")
            if isinstance(node, ast.ClassDef):
                fields = [item for item in node.body if isinstance(item, ast.Assign | ast.AnnAssign)]
                for item in fields:
                    targets = item.targets if isinstance(item, ast.Assign) else [item.target]
                    bad += [
                        f"{name}.{node.name}.{target.id}"
                        for target in targets
                        if isinstance(target, ast.Name) and BANNED.match(target.id)
                    ]
    assert set(bad) == KEPT_NAMES


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    clauses = []
    for name, path in files().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                first = (ast.get_docstring(node) or " ").split(maxsplit=1)[:1]
                if first and first[0].rstrip(",:") in ("What", "Of", "How"):
                    clauses.append(f"{name}.{getattr(node, 'name', '')}")
    assert clauses == []
