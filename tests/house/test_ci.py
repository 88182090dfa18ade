"""What continuous integration runs and says, with a `make` that does nothing but tell."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import again

ROOT = Path(__file__).resolve().parents[2]
MAKE = """#!/bin/sh
echo "make $*" >> "$MADE"
case "$1" in
    test|test-*) echo "==== 3 passed, of $1 ====" >> "$FLYWHEEL_TEST_COUNTS";;
esac
eval "$BROKEN"
"""


def run(at: Path, seconds: int, broken: str = "") -> tuple[int, list[str], list[str]]:
    """Its exit code, what it made, and what it printed."""
    make = at / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    surroundings = {"PATH": f"{at}:{os.environ['PATH']}", "MADE": str(at / "made"), "BROKEN": broken}
    done = subprocess.run(
        [ROOT / ".ci" / "run"],
        env={**surroundings, "FLYWHEEL_CI_SECONDS": str(seconds)},
        capture_output=True,
        text=True,
    )
    return done.returncode, (at / "made").read_text().splitlines(), done.stdout.splitlines()


def test_all_is_run_where_there_is_time_and_the_last_lines_count_the_tests(tmp_path: Path) -> None:
    code, made, printed = run(tmp_path, 4000)
    assert code == 0
    assert made[0] == "make .venv/.installed-dev"
    assert set(made[1:3]) == {"make check", "make test"}  # beside each other
    assert made[3:5] == ["make .venv-serve/.installed", "make test-serve"]
    assert made[-1] == "make test-interop THEIRS=verifiers classic nemo-gym harbor openenv"
    assert printed[-4:] == [
        f"==== 3 passed, of {name} ====" for name in ("test", "test-serve", "test-ray", "test-interop")
    ]


def test_what_there_is_no_time_for_is_said_before_the_counts_and_fails_nothing(tmp_path: Path) -> None:
    code, made, printed = run(tmp_path, 100)
    assert (code, sorted(made)) == (0, ["make .venv/.installed-dev", "make check", "make test"])
    assert "make test-serve: without .venv-serve/.installed, for which there is no time" in printed[-8]
    assert printed[-1] == "==== 3 passed, of test ===="


def test_what_cannot_be_installed_is_left_out(tmp_path: Path) -> None:
    code, made, printed = run(tmp_path, 4000, 'case "$1" in *serve/.installed|*nemo-gym/*) exit 2;; esac')
    assert code == 0
    assert "make test-serve" not in made
    assert made[-1] == "make test-interop THEIRS=verifiers classic harbor openenv"
    assert [line.partition(",")[0] for line in printed[-5:-3]] == [
        "make test-serve: without .venv-serve/.installed",
        "make test-interop: without .venv-interop/nemo-gym/.installed",
    ]


@pytest.mark.parametrize("target", ["check", "test-serve", "test-ray", "test-interop"])
def test_what_fails_there_fails(tmp_path: Path, target: str) -> None:
    code, _, _ = run(tmp_path, 4000, f"[ $1 != {target} ]")
    assert code != 0


def test_tests_that_fail_are_tried_once_more(tmp_path: Path) -> None:
    code, made, _ = run(tmp_path, 100, "[ $1 != test ]")
    assert code == 0
    assert sorted(made) == ["make .venv/.installed-dev", "make check", "make test", "make test-again"]
    code, *_ = run(tmp_path, 100, 'case "$1" in test*) exit 1;; esac')
    assert code != 0


def test_the_second_try_names_what_failed_only_once() -> None:
    reports = {"passed": ["a", "b", "c"], "failed": ["d"], "error": ["c"]}
    lines: list[str] = []
    reporter = SimpleNamespace(
        getreports=lambda kind: [SimpleNamespace(nodeid=name) for name in reports[kind]],
        section=lines.append,
        line=lines.append,
    )
    again.pytest_terminal_summary(reporter)  # type: ignore[arg-type]
    assert lines[1:] == ["FLAKY: a", "FLAKY: b"]
