"""Run every attack under every set of layers, as root and as an ordinary user, and write down who won.

    python -m tests.workers.sandbox.matrix                the table on stdout
    python -m tests.workers.sandbox.matrix --write        and into docs/design/sandbox.md
    python -m tests.workers.sandbox.matrix --only all     just with all layers, as the tests do

It needs nothing but Python. As root it plays the ordinary user in a child of another account, on a copy of these files
and with an interpreter that this account can reach.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.workers.sandbox.attacks import EVERY, Attack
from tests.workers.sandbox.world import LIMITS, World
from workers.sandbox import host, verdict
from workers.sandbox.layers import ACCOUNT, ALL
from workers.sandbox.outcome import Outcome

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/design/sandbox.md"
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
USER = 61_137
"""An account number that no distribution gives away; the ordinary user's, when root plays one."""
WORD = "only-the-verifier-knows"
JUDGE = f"""
def program(trace, target): return trace["program"]
def verify(trace, target, ran): return 1.0 if ran["value"] == {WORD!r} or ran["printed"].strip() == {WORD!r} else 0.0
"""


@dataclass(frozen=True, slots=True)
class Result:
    who: str
    off: str
    """The layer that was off: one of them, `none` (all are on) or `all` (not one is on)."""
    attack: str
    family: str
    harm: str
    exposed: str
    status: str


def given(off: str) -> list[str]:
    return [] if off == "all" else [layer for layer in ALL if layer != off]


def settings(who: str) -> list[str]:
    return ["none", *(layer for layer in ALL if layer != ACCOUNT or who == "root"), "all"]


def play(world: World, attack: Attack, off: str) -> Result:
    """One attack under one set of layers."""
    is_inside = attack.family == "the interpreter"
    if is_inside:
        world.call_of_another()
    told = world.given()
    try:
        outcome = _program(attack, off) if attack.is_program else _run(attack.code, [told], off)
    except Exception as error:
        return _result(attack, off, f"broke the host: {error!r}", "", "")
    harm = world.damage(outcome)
    if harm:
        world.reset()
    exposed = str(outcome.value)[:60] if str(outcome.value).startswith("exposed") else ""
    if is_inside and (words := _after(off)):
        harm = words
    return _result(attack, off, harm, exposed, outcome.status.value)


def _result(attack: Attack, off: str, harm: str, exposed: str, status: str) -> Result:
    return Result(who(), off, attack.name, attack.family, harm, exposed, status)


def _run(code: str, arguments: Sequence[object], off: str) -> Outcome:
    return host.run(code, arguments=arguments, limits=LIMITS, given=given(off))


def _program(attack: Attack, off: str) -> Outcome:
    """The verdict of an honest verifier on a trace whose program attacks it."""
    scored = verdict.score(JUDGE, {"program": attack.body}, WORD, limits=LIMITS, given=given(off))
    value = "forged" if scored.score not in (0.0, None) else scored.score
    return Outcome(scored.status, value, scored.reason, scored.printed, scored.seconds, scored.peak_bytes)


def _after(off: str) -> str:
    """Whether the next call is what it should be."""
    seen = _run("import json, random\ndef verify(): return [json.dumps(1), random.random()]", [], off)
    return "" if seen.value == ["1", 0.8444218515250481] else f"spoilt the next call: {seen.status} {seen.value!r}"


def who() -> str:
    return "root" if os.geteuid() == 0 else "user"


def attack_all(only: Sequence[str] = (), every: Sequence[Attack] = EVERY) -> list[Result]:
    """Every attack under the settings of whoever we are."""
    world = World()
    try:
        return [
            play(world, attack, off)
            for off in (only or settings(who()))
            for attack in every
            if not (off == "all" and attack.is_for_layers_only)
        ]
    finally:
        world.close()


def attack_all_as_user(only: Sequence[str] = ()) -> list[Result]:
    """The same as an ordinary user; raises OSError when that account can reach no interpreter."""
    if os.geteuid() != 0:
        return attack_all(only)
    with as_user() as command:
        done = subprocess.run(
            [*command, "-m", "tests.workers.sandbox.matrix", "--json", *(f"--only={each}" for each in only)],
            **_identity(Path(command.copy_of)),  # type: ignore[call-overload]
        )
    if done.returncode:
        raise OSError(done.stderr[-2000:])
    return [Result(**row) for row in json.loads(done.stdout)]


class Command(list[str]):
    copy_of: str


def _identity(directory: Path) -> dict[str, object]:
    return {
        "cwd": directory,
        "user": USER,
        "group": USER,
        "extra_groups": [],
        "env": {"SANDBOX_SECRET": "canary-of-the-user", "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
        "capture_output": True,
        "text": True,
    }


@contextlib.contextmanager
def as_user() -> Iterator[Command]:
    """A command for Python as another account, in a copy of what it needs: ours may lie in a private home."""
    directory = Path(tempfile.mkdtemp(prefix="fw-user-"))
    try:
        for part in ("workers/__init__.py", "flywheel/__init__.py", "flywheel/system/env.py", "tests/__init__.py"):
            (directory / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, directory / part)
        (directory / "tests/workers").mkdir()
        shutil.copy(ROOT / "tests/workers/__init__.py", directory / "tests/workers/__init__.py")
        for part in ("workers/sandbox", "tests/workers/sandbox"):
            shutil.copytree(ROOT / part, directory / part, ignore=shutil.ignore_patterns("__pycache__", "test_*"))
        for path in [directory, *directory.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        for python in dict.fromkeys((sys.executable, os.path.realpath(sys.executable), "/usr/bin/python3")):
            command = Command([python])
            command.copy_of = str(directory)
            look = [python, "-c", "import sys, json, ctypes; sys.exit(sys.version_info < (3, 11))"]
            with contextlib.suppress(OSError):
                if subprocess.run(look, **_identity(directory)).returncode == 0:  # type: ignore[call-overload]
                    yield command
                    return
        raise OSError("another account can reach no Python of 3.11 or newer on this machine")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def table(results: Sequence[Result], seconds: float) -> str:
    """Who won, in Markdown: families by settings, then what each layer alone had stopped."""
    lines = []
    for account in dict.fromkeys(result.who for result in results):
        mine = [result for result in results if result.who == account]
        columns = [off for off in settings(account) if any(result.off == off for result in mine)]
        titles = {"none": "all layers", "all": "no layer"}
        lines += [f"**As {'root' if account == 'root' else 'an ordinary user'}**", ""]
        lines += ["| attacks | n | " + " | ".join(titles.get(off, f"without {off}") for off in columns) + " |"]
        lines += ["|---|---|" + "---|" * len(columns)]
        families = list(dict.fromkeys(result.family for result in mine))
        for family in [*families, "together"]:
            rows = [result for result in mine if family in (result.family, "together")]
            cells = [_cell([row for row in rows if row.off == off]) for off in columns]
            lines.append(f"| {family} | {len({row.attack for row in rows})} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["Harmful, then (in brackets) those that did no harm but were let into an interface of the kernel.", ""]
    kernel = platform.release().split("-")[0]
    lines.append(f"{platform.system()} {kernel}, Python {platform.python_version()}, {seconds:.0f} s.")
    through = [row for row in results if row.harm and row.off not in ("none", "all")]
    if through:
        lines += ["", "What got through with one layer off:", ""]
        lines += [f"- as {row.who}, without {row.off}: {row.attack} ({row.harm})" for row in through]
    bare = {row.attack for row in results if row.off == "all" and (row.harm or row.exposed)}
    idle = [attack.name for attack in EVERY if attack.name not in bare and not attack.is_for_layers_only]
    if any(row.off == "all" for row in results):
        lines += [
            "",
            f"Without any layer {len(bare)} of these attacks win or are let in. The other {len(idle)} fail even",
        ]
        lines += ["then, by how a call is built: a clean process, watched from outside, whose answer is read strictly."]
    return "\n".join(lines)


def _cell(rows: Sequence[Result]) -> str:
    harmful, exposed = sum(bool(row.harm) for row in rows), sum(bool(row.exposed and not row.harm) for row in rows)
    return f"{harmful} ({exposed})" if exposed else str(harmful)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="layers off: none, all, or the name of one")
    parser.add_argument("--json", action="store_true", help="results as JSON, of the account that this runs as")
    parser.add_argument("--name", default="", help="only attacks whose name contains this")
    parser.add_argument("--write", action="store_true", help="put the table into docs/design/sandbox.md")
    asked = parser.parse_args()
    began = time.monotonic()
    if asked.json or asked.name:
        results = attack_all(asked.only, [attack for attack in EVERY if asked.name in attack.name])
        if asked.json:
            print(json.dumps([{name: getattr(result, name) for name in Result.__slots__} for result in results]))
        else:
            for result in results:
                print(f"{result.off:11} {result.attack:50} {result.status:9} {result.harm or result.exposed or '–'}")
        return 0
    results = attack_all(asked.only)
    if os.geteuid() == 0:
        results += attack_all_as_user(asked.only)
    text = table(results, time.monotonic() - began)
    print(text)
    if asked.write:
        page = PAGE.read_text()
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")
    return 1 if any(row.harm for row in results if row.off == "none") else 0


if __name__ == "__main__":
    sys.exit(main())
