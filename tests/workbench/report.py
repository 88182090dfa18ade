"""What the detectors propose on the recorded runs, against labels made by reading: `python -m tests.workbench.report`.

Writes the tables into `docs/design/detectors.md` and prints how long detecting takes. The runs are not in the
repository; labels and the rules by which they were made are (`README.md` beside this file).
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy import special

from flywheel.core.detectors.standard_buckets import BUCKETS, DETECTORS, Context, Proposal, detect
from flywheel.core.evidence.statistics.estimates import Estimate, proportion
from flywheel.core.evidence.statistics.reviewer_agreement import cohen_kappa
from flywheel.core.traces import Trace
from flywheel.trajectories.formats.files.file_formats import parse_jsonl

HERE = Path(__file__).parent
RUNS = HERE.parents[2] / "shared/data/workbench"
PAGE = HERE.parents[1] / "docs/design/detectors.md"
BEGIN, END = "<!-- tables: python -m tests.workbench.report -->", "<!-- end of tables -->"
HALVES = ("tune", "report")
OFF = [name for name, detector in DETECTORS.items() if not detector.is_on]


@dataclass(frozen=True, slots=True)
class Label:
    run: str
    file: str
    stratum: str
    drawn: tuple[int, int]
    """So many of so many runs of its stratum were drawn."""
    half: str
    verdict: str
    bucket: str
    also: tuple[str, ...]
    step: int | None
    until: int | None
    sure: bool
    why: str

    @property
    def weight(self) -> float:
        """How many runs of all it stands for."""
        drawn, of = self.drawn
        return of / drawn

    @property
    def fails(self) -> bool:
        return self.verdict == "fail"

    @property
    def possible(self) -> set[str]:
        """What a reviewer may file it under; nothing, when it passes."""
        return {self.bucket, *self.also} if self.fails else set()


@dataclass(frozen=True, slots=True)
class Read:
    """A labelled run with what is proposed for it."""

    label: Label
    template: str
    proposals: list[Proposal]

    def of(self, detector: str) -> list[Proposal]:
        return [proposal for proposal in self.proposals if proposal.detector == detector]

    @property
    def proposed(self) -> set[str]:
        return self.scored(0.0, math.inf)

    @property
    def first(self) -> str:
        """The bucket that a reviewer is shown first."""
        return self.proposals[0].bucket if self.proposals else ""

    def scored(self, low: float, high: float) -> set[str]:
        """The buckets proposed with a score between."""
        return {proposal.bucket for proposal in self.proposals if low <= proposal.score < high}


def labels() -> list[Label]:
    rows = (json.loads(line) for line in (HERE / "labels.jsonl").read_text().splitlines())
    return [Label(**{**row, "drawn": tuple(row["drawn"]), "also": tuple(row["also"])}) for row in rows]


def second_reading() -> dict[str, tuple[str, str]]:
    rows = (json.loads(line) for line in (HERE / "second_reading.jsonl").read_text().splitlines())
    return {row["run"]: (row["verdict"], row["bucket"]) for row in rows}


@cache
def runs() -> dict[str, tuple[str, str, Trace]]:
    """By id: the file's name, the task's template, the trace. Runs and tasks stand in the same order."""
    found = {}
    for path in sorted(RUNS.glob("*.atif.jsonl")):
        tasks = (RUNS / f"{path.name.partition('-')[0]}-tasks.jsonl").read_text().splitlines()
        with path.open("rb") as file:
            for parsed, task in zip(parse_jsonl(file), tasks, strict=True):
                assert parsed.trace
                found[parsed.trace.trace_id] = path.name, json.loads(task)["template"], parsed.trace
    return found


@cache
def everything() -> dict[str, list[Proposal]]:
    """What is proposed for each run, by the detectors that are on by default."""
    return {run: detect(trace, Context(without=OFF)) for run, (_, _, trace) in runs().items()}


@cache
def sample() -> list[Read]:
    return [Read(label, runs()[label.run][1], everything()[label.run]) for label in labels()]


def share(rows: Sequence[Read], counts: Iterable[bool]) -> Estimate:
    """The share of runs that count, each weighted by how many it stands for.

    The ratio's variance by linearisation, clustered by the task's template, of which ten tasks each were made; then
    Clopper and Pearson's interval on the effective sample size made smaller by the degrees of freedom (Korn and
    Graubard 1998), as `estimates.clustered_rate` does where all weigh the same and templates are of one size.
    """
    n, clusters = len(rows), sorted({row.template for row in rows})
    if n == 0:
        return Estimate(None, None, None, 0, 0, 0, "no interval", 0.95, None, "nothing was scored")
    weights = np.array([row.label.weight for row in rows])
    values = np.fromiter(counts, np.float64)
    mean = 1.0 if values.all() else float(weights @ values / weights.sum())
    if len(clusters) < 2:
        return Estimate(mean, None, None, n, 0, len(clusters), "no interval", 0.95, None, "one template only")
    if mean in (0.0, 1.0):
        edge = proportion(round(mean) * len(clusters), len(clusters))
        return Estimate(mean, edge.low, edge.high, n, 0, len(clusters), f"{edge.method}, per template")
    codes = np.array([clusters.index(row.template) for row in rows])
    totals = np.bincount(codes, weights * (values - mean)) / weights.sum()
    variance = len(clusters) / (len(clusters) - 1) * float(totals @ totals)
    if variance == 0:
        return Estimate(mean, None, None, n, 0, len(clusters), "no interval", 0.95, None, "no variance")
    shrunk = (special.stdtrit(n - 1, 0.975) / special.stdtrit(len(clusters) - 1, 0.975)) ** 2
    trials = max(1.0, min(float(n), mean * (1 - mean) / variance * shrunk))
    low = float(special.betaincinv(mean * trials, trials - mean * trials + 1, 0.025))
    high = float(special.betaincinv(mean * trials + 1, trials - mean * trials, 0.975))
    return Estimate(mean, low, high, n, 0, len(clusters), "Korn-Graubard, weighted, cluster-robust")


def at_its_step(row: Read, proposals: Sequence[Proposal]) -> bool:
    """One of the proposals points at a step where the reader saw the fault, or at none."""
    step, until = row.label.step, row.label.until
    if step is None or until is None:
        return False
    return any(not proposal.step or step <= int(proposal.step.removeprefix("step-")) <= until for proposal in proposals)


def tables() -> str:
    rows = sample()
    return "\n\n".join(
        (
            _overall(rows),
            "### Each detector\n\n" + _by_detector(rows),
            "### Each bucket\n\n" + _by_bucket(rows),
            "### What the reader said, and what was proposed first\n\n" + _confusion(rows),
            "### The scores\n\n" + _scores(rows),
            "### The two halves of the sample\n\n" + _halves(rows),
        )
    )


def _overall(rows: list[Read]) -> str:
    wrong, right = _fail(rows), [row for row in rows if not row.label.fails]
    told, first = _told(rows), _told(wrong)
    said = [
        ("Runs that fail", share(rows, [row.label.fails for row in rows])),
        ("Failing runs with any proposal (recall)", share(wrong, [bool(row.proposals) for row in wrong])),
        ("Runs with a proposal that fail (precision)", share(told, [row.label.fails for row in told])),
        ("Passing runs with a proposal (false alarms)", share(right, [bool(row.proposals) for row in right])),
        ("First proposal names the main bucket", share(first, [row.first == row.label.bucket for row in first])),
        ("First proposal names a possible bucket", share(first, [row.first in row.label.possible for row in first])),
        ("A proposal points at the failing step", share(first, [at_its_step(row, row.proposals) for row in first])),
    ]
    return table(("", "share"), ((name, shown(estimate)) for name, estimate in said))


def _fail(rows: list[Read]) -> list[Read]:
    return [row for row in rows if row.label.fails]


def _told(rows: list[Read]) -> list[Read]:
    return [row for row in rows if row.proposals]


def _by_detector(rows: list[Read]) -> str:
    counted = Counter(
        (name, runs()[run][0]) for run, found in everything().items() for name in {p.detector for p in found}
    )
    files = sorted({file for file, _, _ in runs().values()})
    said, silent = [], []
    for name, bucket in ((each.name, each.bucket) for each in DETECTORS.values() if each.is_on):
        told, mine = [row for row in rows if row.of(name)], [row for row in rows if row.label.bucket == bucket]
        amounts = [counted[name, file] for file in files]
        if not sum(amounts):
            silent.append(f"`{name}`")
            continue
        shares = (
            share(told, [row.label.bucket == bucket for row in told]),
            share(told, [bucket in row.label.possible for row in told]),
            share(told, [row.label.fails for row in told]),
            share(told, [at_its_step(row, row.of(name)) for row in told]),
            share(mine, [bool(row.of(name)) for row in mine]),
        )
        said.append(
            (f"`{name}`", f"`{bucket}`", f"{sum(amounts)} ({', '.join(map(str, amounts))})", *map(shown, shares))
        )
    head = (
        "detector",
        "bucket",
        f"of {len(runs())} ({', '.join(file.partition('-')[0].replace('_', ' ') for file in files)})",
        "precision: main bucket",
        "precision: possible bucket",
        "precision: run fails",
        "at its step",
        "recall of its bucket",
    )
    off = ", ".join(f"`{name}`" for name in OFF)
    return f"{table(head, said)}\n\nProposes nothing here: {', '.join(silent)}. Off by default: {off}."


def _by_bucket(rows: list[Read]) -> str:
    said = []
    for bucket in BUCKETS:
        mine = [row for row in rows if row.label.bucket == bucket]
        if mine:
            shares = (
                share(rows, [row.label.bucket == bucket for row in rows]),
                share(mine, [bucket in row.proposed for row in mine]),
                share(mine, [bool(row.proposals) for row in mine]),
            )
            said.append((f"`{bucket}`", *map(shown, shares)))
    return table(("main bucket", "share of runs", "proposed (recall)", "anything proposed"), said)


def _confusion(rows: list[Read]) -> str:
    columns = [bucket for bucket in (*BUCKETS, "") if any(row.first == bucket for row in rows)]
    lines = []
    for bucket in (*BUCKETS, ""):
        mine = Counter(row.first for row in rows if row.label.bucket == bucket)
        if mine:
            lines.append((f"`{bucket}`" if bucket else "passes", *(str(mine[column] or "·") for column in columns)))
    return table(("main bucket", *(f"`{column}`" if column else "nothing" for column in columns)), lines)


def _scores(rows: list[Read]) -> str:
    said = []
    for name, low, high in (("0.9 and more", 0.9, 1.01), ("0.8 to 0.9", 0.8, 0.9), ("less", 0.0, 0.8)):
        told = [(row, buckets) for row in rows if (buckets := row.scored(low, high))]
        main = share([row for row, _ in told], [row.label.bucket in buckets for row, buckets in told])
        some = share([row for row, _ in told], [bool(buckets & row.label.possible) for row, buckets in told])
        said.append((name, shown(main), shown(some)))
    return table(("score", "main bucket", "possible bucket"), said)


def _halves(rows: list[Read]) -> str:
    said = []
    for half in HALVES:
        mine = [row for row in rows if row.label.half == half]
        right = [row for row in mine if not row.label.fails]
        wrong, told, first = _fail(mine), _told(mine), _told(_fail(mine))
        shares = (
            share(wrong, [bool(row.proposals) for row in wrong]),
            share(told, [row.label.fails for row in told]),
            share(right, [bool(row.proposals) for row in right]),
            share(first, [row.first == row.label.bucket for row in first]),
            share(first, [row.first in row.label.possible for row in first]),
        )
        said.append((half, *map(shown, shares)))
    head = ("half", "recall", "precision", "false alarms", "first is the main bucket", "first is a possible bucket")
    return table(head, said)


def shown(estimate: Estimate) -> str:
    if estimate.mean is None:
        return "–"
    if estimate.low is None or estimate.high is None:
        return f"{100 * estimate.mean:.0f}% (n {estimate.n})"
    return f"{100 * estimate.mean:.0f}% [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}] (n {estimate.n})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def own_agreement() -> tuple[Estimate, Estimate]:
    """Of the reader with himself, on those that were read twice: the verdict, and the main bucket."""
    first, again = {label.run: label for label in labels()}, second_reading()
    verdicts = cohen_kappa([first[run].verdict for run in again], [said[0] for said in again.values()])
    return verdicts, cohen_kappa([first[run].bucket for run in again], [said[1] for said in again.values()])


def written() -> str:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


def microseconds_a_step() -> Iterator[float]:
    traces = [trace for _, _, trace in runs().values()]
    steps = sum(len(trace.steps) for trace in traces)
    for _ in range(7):
        began = time.process_time()
        for trace in traces:
            detect(trace)
        yield (time.process_time() - began) / steps * 1e6


if __name__ == "__main__":
    PAGE.write_text(written())
    print(f"written: {PAGE.name}; {min(microseconds_a_step()):.1f} µs a step")
