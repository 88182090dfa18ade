"""What is registered in the code is documented, and what is documented exists."""

import re
import tomllib
from pathlib import Path

import pytest

from flywheel.accounts.models import Role
from flywheel.core import recipes
from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.core.envs.kinds import KINDS
from flywheel.core.envs.tool_call import PARTS
from flywheel.core.verifiers import rubric_parts
from flywheel.promotions.models import Candidate
from flywheel.system import env
from flywheel.trajectories.formats.dialects.dialect_registry import DIALECTS
from flywheel.trajectories.formats.files.file_formats import FORMATS
from flywheel.trajectories.models import Label, Outcome, Source
from flywheel.trajectories.search import query

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"


PROSE = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]
PLACES = ("", "flywheel/")
"""Where a path in prose begins: at the repository's root, or at the web application's rooms."""


def read(name: str) -> str:
    return (GUIDES / name).read_text().lower()


@pytest.mark.parametrize("variable", env.VARIABLES.values(), ids=lambda v: v.name)
def test_every_setting_stands_in_the_operators_guide(variable: env.Variable) -> None:
    default = f"`{variable.default}`" if variable.default else ""
    row = " ".join(f"| `{variable.name}` | {default} | {variable.hint} |".split())
    assert row in " ".join((GUIDES / "operator.md").read_text().split())


def test_every_bucket_stands_in_the_reviewers_guide() -> None:
    assert [bucket.label for bucket in BUCKETS.values() if bucket.label.lower() not in read("reviewer.md")] == []


def test_every_algorithm_stands_in_the_trainers_guide() -> None:
    assert [a.label for a in recipes.ALGORITHMS.values() if a.label.lower() not in read("trainer.md")] == []


def test_every_part_of_the_verifier_stands_in_the_builders_guide() -> None:
    assert [part for part in (*PARTS, "unsafe") if part not in read("builder.md")] == []


def test_every_part_of_a_rubric_stands_in_the_builders_guide() -> None:
    guide = read("builder.md").lower()
    assert [part.label for part in rubric_parts.PARTS.values() if part.label.lower() not in guide] == []


def test_every_dialect_stands_in_the_guide_to_ingest() -> None:
    guide = read("ingest.md").lower()
    assert [name for dialect in DIALECTS if (name := vars(dialect)["__name__"].rpartition(".")[2]) not in guide] == []


def test_every_kind_of_environment_stands_in_the_builders_guide() -> None:
    assert [kind for kind in KINDS if f"`{kind}`" not in read("builder.md")] == []


def test_every_verdict_stands_in_the_approvers_guide() -> None:
    assert [v.label for v in Candidate.Verdict if v.label.lower() not in read("approver.md")] == []


def test_every_role_stands_in_the_operators_guide() -> None:
    assert [role for role in Role.values if f"| {role} |" not in read("operator.md")] == []


def test_every_format_stands_in_the_guide_to_ingest() -> None:
    assert [name for name in FORMATS if name not in read("ingest.md")] == []


def spelt_out(path: str) -> list[str]:
    """`a/{b,c}.py` as `a/b.py` and `a/c.py`."""
    braces = re.search(r"{([^{}]*)}", path)
    if braces is None:
        return [path]
    before, after = path[: braces.start()], path[braces.end() :]
    return [each for part in braces[1].split(",") for each in spelt_out(before + part + after)]


def is_there(path: str) -> bool:
    """Whether a file, a folder or files of a pattern are there, or a module with what is named in it: `a/b.Name`."""
    module, _, name = path.rpartition(".")
    for place in PLACES:
        inside = ROOT / f"{place}{module}.py"
        if any(any(ROOT.glob(place + each)) for each in (path.rstrip("/"), f"{path}.py")):
            return True
        if module and inside.is_file() and re.search(rf"\b{name}\b", inside.read_text()):
            return True
    return False


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    first = {folder.name for place in PLACES for folder in (ROOT / place).iterdir() if folder.is_dir()}
    gone = [
        told
        for told in re.findall(r"`([\w./{},*-]+)(?:::\w+)?`", page.read_text())
        if "/" in told and told.split("/")[0] in first and not all(map(is_there, spelt_out(told)))
    ]
    assert gone == []


@pytest.mark.parametrize("path", ["tests/gone.py", "core/digests.gone", "workers/{celery,gone}.py", "templates/gone/"])
def test_a_path_that_is_gone_is_seen(path: str) -> None:
    assert not all(map(is_there, spelt_out(path)))
    assert all(map(is_there, spelt_out("workers/{celery,tasks}.py")))
    assert is_there("core/digests.read_json")


def test_every_field_and_value_of_the_filter_bar_stands_in_the_guide_to_search() -> None:
    told = (GUIDES / "search.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \|", told[told.index("## The fields") :], re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(query.FIELDS)
    values = [*query.HAS, *Outcome.values, *Label.values, *Source.values]
    assert [value for value in values if f"`{value}`" not in told] == []


def test_every_example_of_the_guide_to_search_is_understood() -> None:
    told = (GUIDES / "search.md").read_text()
    written = told[told.index("```") + 3 : told.index("## The fields")]
    block, _, rest = written.partition("```")
    rows = [row.split("|")[1] for row in rest.splitlines() if row.startswith("| `")]
    examples = [*block.strip().splitlines(), *(text for row in rows for text in re.findall(r"`([^`]+)`", row))]
    assert len(examples) > 20
    assert [(text, problems) for text in examples if (problems := query.parse(text).problems)] == []


def test_the_glossary_is_short_and_in_order() -> None:
    lines = (ROOT / "docs/design/words.md").read_text().splitlines()
    words = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:]
    assert words == sorted({*words})
    assert len(words) <= 60


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    reasons = (ROOT / "docs/design/dependencies.md").read_text().lower()
    names = {re.split(r"[\[<>=]", line)[0].lower() for line in wanted}
    assert sorted(name for name in names if name not in reasons) == []


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_target_of_the_makefile_explains_itself() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "up", "turn", "test", "check", "bench"):
        assert re.search(rf"^{target}:.*## \w", makefile, re.MULTILINE)
