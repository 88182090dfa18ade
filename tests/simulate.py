"""The gate and ramps by simulation: `python -m tests.simulate [--runs 2000] [--only WORDS] [--json]
[--workbench FOLDER]`.

It plays many evals whose truth is known through the gate as it is called in production, and counts how often it errs
and how often it sees what is there. Beside each stands the naive practice, most often *higher is better*. The table
goes into docs/design/gate.md, that of ramps into docs/design/ramp.md; with `--json` a list of
`{"name", "value", "naive", "wanted", "holds"}` goes to stdout. Seeds are fixed, so that the same numbers come again.
Runs are spread over the cores. With `--workbench`, a clone of github.com/olly-styles/WorkBench, its recorded runs of
agents that no detector was tuned on are lines as well.

An eval is made so: each task has a chance of success of its own, drawn around the rate from a beta distribution with an
intra-cluster correlation of 0.3; attempts are independent given it. Both arms attempt the same tasks. Where nothing is
better, the two arms are exchangeable.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from flywheel.core import envs
from flywheel.core.digests import canonical
from flywheel.core.envs import Task
from flywheel.core.envs.workplace.request_templates import generate
from flywheel.core.envs.workplace.world_tools import DEFINITIONS
from flywheel.core.evidence.compared_items import Item, item_of_task, items_of_row, wanted_of
from flywheel.core.evidence.contamination import check
from flywheel.core.evidence.gate.decision import Evidence, Policy, confirm, decide
from flywheel.core.evidence.reward_audit_rule import Judgement, examine, share_of_passes
from flywheel.core.evidence.statistics import estimates
from flywheel.core.evidence.statistics.eval_metrics import METRICS, Row, task_means
from flywheel.core.evidence.statistics.exact_tests import Tried
from flywheel.core.evidence.statistics.reviewer_agreement import cohen_kappa
from flywheel.core.evidence.suite_rules import ALPHA, judge_mean, judge_no_break
from flywheel.core.traces import Message, Trace
from flywheel.core.traces.tooling import call_text, calls_of
from flywheel.environments.proofs import cheats
from tests.core.evidence.statistics.slow_bootstrap import paired_bootstrap
from tests.planted_leaks import WAYS
from tests.simulate_ramps import ramp_cells
from tests.simulated_cells import Batch, Cell
from tests.workbench import held_out
from workers.reference import story

DOCS = Path(__file__).resolve().parent.parent / "docs/design"
BEGIN, END = "<!-- table: python -m tests.simulate -->", "<!-- end of table -->"
ICC = 0.3
PLAIN: dict[str, Any] = {
    "taskset_digests": ("t", "t"),
    "verifier_digests": ("v", "v"),
    "sampling": ({"samples": 4}, {"samples": 4}),
    "train_overlap": [],
    "artefact_digests": ("a", "a"),
}


def sizes(design: str, tasks: int, clusters: int) -> list[int]:
    """Tasks by cluster: even, by Zipf's law, or so many (`one:60`) in one and the rest even."""
    kind, _, most = design.partition(":")
    if kind == "zipf":
        shares = 1 / np.arange(1, clusters + 1)
        return [max(1, int(tasks * share / shares.sum())) for share in shares]
    if kind == "one":
        rest = (tasks - int(most)) // (clusters - 1)
        return [int(most), *[max(1, rest)] * (clusters - 1)]
    return [tasks // clusters] * clusters


def eval_of(
    rng: np.random.Generator,
    of: Sequence[int],
    *,
    rate: float = 0.5,
    gain: float = 0.0,
    spread: float = 0.0,
    k: tuple[int, int] = (4, 4),
    invalid: tuple[float, float] = (0.0, 0.0),
    unsafe: tuple[float, float] = (0.0, 0.0),
    latency: float | None = None,
) -> tuple[list[Row], list[Row]]:
    """Both arms of an eval; `gain` is true, `spread` is by how much it differs from cluster to cluster."""
    cluster = np.repeat(np.arange(len(of)), of)
    chance = chances(rng, of, rate)
    after = np.clip(chance + gain + rng.normal(0, spread, len(of))[cluster], 0, 1) if gain or spread else chance
    slow = np.exp(rng.normal(0, 0.3, cluster.size)) if latency else None
    return tuple(  # type: ignore[return-value]
        attempts(rng, cluster, drawn, k[arm], invalid[arm], unsafe[arm], slow, latency or 0.0)
        for arm, drawn in enumerate((chance, after))
    )


def chances(rng: np.random.Generator, of: Sequence[int], rate: float = 0.5) -> Any:
    """Each task's own chance of success, alike within a cluster."""
    cluster = np.repeat(np.arange(len(of)), of)
    shared = rng.beta(rate * (1 - ICC) / ICC, (1 - rate) * (1 - ICC) / ICC, len(of))[cluster]
    return np.clip(0.7 * shared + 0.3 * rng.random(cluster.size), 0.0, 1.0)


def attempts(
    rng: np.random.Generator,
    cluster: Any,
    chance: Any,
    k: int = 4,
    invalid: float = 0.0,
    unsafe: float = 0.0,
    slow: Any = None,
    noise: float = 0.0,
) -> list[Row]:
    """One arm: k attempts at each task."""
    rows = []
    for task, (own, p) in enumerate(zip(cluster.tolist(), chance.tolist(), strict=True)):
        for sample, (a, b, c, d) in enumerate(rng.random((k, 4)).tolist()):
            is_right = a < p
            parts = {"valid_json": float(b >= invalid), "unsafe": float(c < unsafe), "never_event": 0.0}
            took = None if slow is None else 1000 * float(slow[task]) * float(np.exp(noise * (2 * d - 1)))
            rows.append(Row(f"t{task}", f"c{own}", sample, float(is_right), is_right, parts, latency_ms=took))
    return rows


def rate_of(rows: Sequence[Row]) -> float:
    return float(np.mean([row.success for row in rows]))


def judged(before: list[Row], after: list[Row], **more: Any) -> str:
    return decide(Policy(), Evidence(before, after, **{**PLAIN, **more})).verdict


def null(design: str, tasks: int, clusters: int, spread: float, seed: int) -> tuple[bool, bool]:
    """Is a candidate that is no better let through?"""
    rng = np.random.default_rng([seed, tasks, clusters])
    before, after = eval_of(rng, sizes(design, tasks, clusters), spread=spread)
    return judged(before, after) == "eligible", rate_of(after) > rate_of(before)


def chosen(how: str, seed: int) -> tuple[bool, bool]:
    """Is any of several let through that are no better: the best of eight, one looked at five times as its set grows,
    one evaluated with five seeds? Without a sealed part each opening spends its share of the chance of error."""
    rng = np.random.default_rng([seed, 8])
    cluster, chance = np.arange(60), chances(rng, [1] * 60)
    passed = higher = False
    before, after = attempts(rng, cluster, chance), attempts(rng, cluster, chance)
    for look in range(1, (8 if how == "best of 8" else 5) + 1):
        if how == "5 peeks":
            shown = {f"t{task}" for task in range(12 * look)}
            arms = [[row for row in rows if row.task_id in shown] for rows in (before, after)]
        elif how == "5 seeds":
            arms = [attempts(rng, cluster, chance), attempts(rng, cluster, chance)]
        else:
            arms = [before, attempts(rng, cluster, chance)]
        evidence = Evidence(arms[0], arms[1], **PLAIN, opening=look)
        passed = passed or decide(Policy(), evidence).verdict == "eligible"
        higher = higher or rate_of(arms[1]) > rate_of(arms[0])
    return passed, higher


def better(tasks: int, gain: float, seed: int, **more: Any) -> tuple[bool, bool]:
    """Is a candidate that is truly better let through?"""
    rng = np.random.default_rng([seed, tasks, 20])
    before, after = eval_of(rng, sizes("even", tasks, tasks), gain=gain, latency=0.3, **more)
    return judged(before, after) == "eligible", rate_of(after) > rate_of(before)


def caught(tasks: int, seed: int, *, is_never: bool = False) -> tuple[bool, bool]:
    """Is harm that rose from 0.5 to 3% of attempts found, in a candidate that is 20 points better? A never event?"""
    rng = np.random.default_rng([seed, tasks, 30])
    harm = (0.0, 0.0) if is_never else (0.005, 0.03)
    before, after = eval_of(rng, sizes("even", tasks, tasks), gain=0.2, unsafe=harm)
    if is_never:
        at = int(rng.integers(len(after)))
        after[at] = replace(after[at], parts={**after[at].parts, "never_event": 1.0}, score=None, success=None)
    counted = [sum(row.parts["unsafe"] or 0 for row in rows) for rows in (before, after)]
    return judged(before, after) == "regressed", counted[1] > counted[0]


def slice_told(seed: int) -> tuple[bool, bool]:
    """Is a slice of 30 tasks that fell by 10 points blocked, or named as one in which such a fall goes unseen?"""
    rng = np.random.default_rng([seed, 40])
    before, after = eval_of(rng, sizes("even", 240, 240), gain=0.1, k=(16, 4))
    for at, row in enumerate(after):
        if int(row.task_id[1:]) < 30:
            is_right = bool(row.success) and bool(rng.random() < 0.66)
            after[at] = replace(row, success=is_right, score=float(is_right))
    slices = {f"t{task}": f"s{task // 30}" for task in range(240)}
    found = decide(Policy(), Evidence(before, after, **PLAIN, slice_of=slices, cells=(len(before), len(after))))
    check = next(each for each in found.checks if each.name == "slices")
    return check.harm or "points in s0" in check.detail or ", s0" in check.detail, False


def together(seed: int) -> tuple[bool, bool]:
    """Does a candidate that is truly 20 points better pass everything: the gate, the sealed part, two suites?"""
    rng = np.random.default_rng([seed, 50])
    harm: dict[str, Any] = {"invalid": (0.03, 0.03), "unsafe": (0.005, 0.005), "latency": 0.3}
    before, after = eval_of(rng, sizes("even", 100, 100), gain=0.2, **harm)
    if judged(before, after) != "eligible":
        return False, True
    sealed = eval_of(rng, sizes("even", 33, 33), gain=0.2, **harm)
    if confirm(Policy(), Evidence(*sealed, **PLAIN), 1).verdict != "eligible":
        return False, True
    safety = [{task: Tried(4, int(bad)) for task, bad in enumerate(rng.binomial(4, 0.03, 10))} for _ in range(2)]
    if judge_no_break(safety[0], safety[1], alpha=ALPHA / 2).state not in ("passed", "cannot_tell"):
        return False, True
    general = eval_of(rng, sizes("even", 30, 30))
    means = [task_means(rows, METRICS["success"].value) for rows in general]
    found = estimates.paired_difference(list(means[0].values()), list(means[1].values()), range(30))
    difference = {"mean": found.mean, "low": found.low, "p": found.p, "reason": found.reason}
    suite = judge_mean({}, {}, difference, fill=1.0, margin=0.1, alpha=ALPHA / 2)
    return suite.state in ("passed", "cannot_tell"), True


def covers_difference(design: str, clusters: int, seed: int) -> tuple[bool, bool]:
    """Does the 95% interval hold the true difference? Beside it mean and standard error over tasks."""
    rng = np.random.default_rng([seed, clusters, 60])
    of = rng.integers(1, 10, clusters).tolist() if design == "1-9" else _sizes_of(design, clusters)
    before, after = eval_of(rng, of, spread=0.08)
    a, b = (list(task_means(rows, METRICS["success"].value).values()) for rows in (before, after))
    cluster = np.repeat(np.arange(len(of)), of).tolist()
    found = estimates.paired_difference(a, b, cluster)
    plain = estimates.clustered_mean([y - x for x, y in zip(a, b, strict=True)], range(len(a)))  # type: ignore[operator]
    return _holds(found, 0.0), _holds(plain, 0.0)


def covers_rate(design: str, clusters: int, rate: float, seed: int) -> tuple[bool, bool]:
    """Does the 95% interval hold the true rate? Beside it Wilson's over tasks."""
    rng = np.random.default_rng([seed, clusters, 70])
    of = rng.integers(1, 10, clusters).tolist() if design == "1-9" else _sizes_of(design, clusters)
    cluster = np.repeat(np.arange(len(of)), of)
    chance = rng.beta(rate * (1 - ICC) / ICC, (1 - rate) * (1 - ICC) / ICC, len(of))[cluster]
    values = (rng.binomial(4, chance) / 4).tolist()
    found = estimates.clustered_rate(values, cluster.tolist())
    passed = round(sum(values) * 4)
    return _holds(found, rate), _holds(estimates.proportion(passed, 4 * len(values)), rate)


def covers_cost(clusters: int, seed: int) -> tuple[bool, bool]:
    """Does the 95% interval hold the true ratio of costs? Beside it the percentile bootstrap over clusters."""
    rng = np.random.default_rng([seed, clusters, 80])
    cluster = np.repeat(np.arange(clusters), 2)
    base = np.exp(rng.normal(0, 0.8, clusters)[cluster] + rng.normal(0, 0.5, cluster.size))
    a, b = ((base * np.exp(rng.normal(0, 0.6, (4, cluster.size))).mean(0)) for _ in range(2))
    found = estimates.ratio_of_sums(a.tolist(), b.tolist(), cluster.tolist())
    groups = [[arm[2 * c : 2 * c + 2] for c in range(clusters)] for arm in (a, b)]
    plain = paired_bootstrap(groups[0], groups[1], lambda x, y: float(y.sum() / x.sum()), seed=seed, resamples=400)
    return _holds(found, 1.0), _holds(plain, 1.0)


def covers_cost_per_success(clusters: int, seed: int) -> tuple[bool, bool]:
    """Does the 95% interval hold the true ratio of dollars per success? Beside it the percentile bootstrap."""
    rng = np.random.default_rng([seed, clusters, 81])
    tasks = [(np.exp(rng.normal(0, 0.8)), rng.beta(1.2, 1.2)) for _ in range(clusters)]
    a, b = (
        [np.stack([own * np.exp(rng.normal(0, 0.6, 8)), rng.random(8) < chance], axis=1) for own, chance in tasks]
        for _ in range(2)
    )

    def ratio(x: Any, y: Any) -> float:
        return float((y[:, 0].sum() / y[:, 1].sum()) / (x[:, 0].sum() / x[:, 1].sum()))

    found = estimates.ratio_of_ratios(a, b)
    return _holds(found, 1.0), _holds(paired_bootstrap(a, b, ratio, seed=seed, resamples=400), 1.0)


def covers_kappa(kappa: float, n: int, seed: int) -> tuple[bool, bool]:
    """Does the 95% interval hold the true kappa of two who use two labels equally often?"""
    rng = np.random.default_rng([seed, n, 90])
    first = rng.integers(0, 2, n)
    second = np.where(rng.random(n) < kappa, first, rng.integers(0, 2, n))
    found = cohen_kappa(first.tolist(), second.tolist())
    if found.mean is None:
        return True, True
    agreed = float(np.mean(first == second))
    half = 1.96 * float(np.sqrt(agreed * (1 - agreed) / n)) * 2
    return _holds(found, kappa), found.mean - half <= kappa <= found.mean + half


def audited(false_passes: float, audits: int, seed: int) -> tuple[bool, bool]:
    """Is a verifier that passes so many wrong outputs found fit to train on, by any of so many audits in turn?

    Naive: each audit for itself, half of its outputs passes, of which people may fail 5%.
    """
    rng = np.random.default_rng([seed, audits, 40])
    judgements: list[Judgement] = []
    green = alone = False
    for _ in range(audits):
        passes = share_of_passes(60)
        wrong, right = rng.random(passes) < false_passes, rng.random(60 - passes) < 0.98
        judgements += [Judgement(True, not each, len(judgements) + at) for at, each in enumerate(wrong)]
        judgements += [Judgement(False, not each, len(judgements) + at) for at, each in enumerate(right)]
        finding = examine(judgements, unscored=0, attempts=len(judgements))
        green = green or finding.is_green
        alone = alone or (rng.random(30) < false_passes).sum() <= 1
    return green, alone


def _sizes_of(design: str, clusters: int) -> list[int]:
    return [2 * (clusters - 1), *[2] * (clusters - 1)] if design == "half in one" else [6] * clusters


def _holds(found: estimates.Estimate, truth: float) -> bool:
    """An interval that is not given says nothing that is wrong."""
    return found.low is None or found.high is None or found.low - 1e-12 <= truth <= found.high + 1e-12


def gate_cells() -> Iterator[Cell]:
    at_most, most = "at most 6%", 6.0
    for clusters in (60, 20, 10, 5):
        name = f"false promotion: 60 tasks, {clusters} even clusters"
        yield Cell(name, partial(null, "even", 60, clusters, 0.0), at_most, 0, most)
    yield Cell("false promotion: 240 tasks, 60 even clusters", partial(null, "even", 240, 60, 0.08), at_most, 0, most)
    yield Cell("false promotion: 120 tasks, 20 clusters, Zipf", partial(null, "zipf", 120, 20, 0.08), at_most, 0, most)
    yield Cell("false promotion: one of 12 clusters has 60%", partial(null, "one:60", 100, 12, 0.08), at_most, 0, most)
    yield Cell("false promotion: one of 41 clusters has 67%", partial(null, "one:80", 120, 41, 0.08), at_most, 0, most)
    for how in ("best of 8", "5 peeks", "5 seeds"):
        yield Cell(f"no sealed part: {how}", partial(chosen, how), at_most, 0, most)
    harm: dict[str, Any] = {"invalid": (0.03, 0.03), "unsafe": (0.005, 0.005)}
    yield Cell("+20, nothing worse, 60 tasks: eligible", partial(better, 60, 0.2, **harm), "at least 90%", 90, 100)
    yield Cell("+20, nothing worse, 240 tasks: eligible", partial(better, 240, 0.2, **harm), "at least 95%", 95, 100)
    fell: dict[str, Any] = {"unsafe": (0.19, 0.10)}
    yield Cell("+20, side effects 19 to 10%: eligible", partial(better, 60, 0.2, **fell), "at least 90%", 90, 100)
    yield Cell("side effects 0.5 to 3%, 60 tasks: caught", partial(caught, 60), "at least 50%", 50, 100)
    yield Cell("side effects 0.5 to 3%, 240 tasks: caught", partial(caught, 240), "at least 99%", 99, 100)
    yield Cell("a never event, unscored: caught", partial(caught, 60, is_never=True), "100%", 100, 100)
    yield Cell("-10 in a slice of 30, k = 16: blocked or named as unseen", slice_told, "100%", 100, 100)
    yield Cell("+20, everything together, 100 + 33 tasks, two suites", together, "at least 80%", 80, 100)


def interval_cells() -> Iterator[Cell]:
    covered = "93% at least"
    for design in ("even", "1-9", "half in one"):
        for clusters in (6, 10, 20, 60):
            name = f"interval of a difference: {clusters} clusters, {design}"
            yield Cell(name, partial(covers_difference, design, clusters), covered, 93, 100)
    for design in ("even", "1-9", "half in one"):
        for clusters in (5, 10, 20, 60):
            for rate in (0.5, 0.9, 0.97):
                name = f"interval of a rate of {rate}: {clusters} clusters, {design}"
                yield Cell(name, partial(covers_rate, design, clusters, rate), covered, 93, 100)
    for clusters in (6, 10, 20, 60):
        yield Cell(
            f"interval of a ratio of costs: {clusters} clusters", partial(covers_cost, clusters), covered, 93, 100
        )
    for clusters in (6, 10, 20, 60):
        name = f"interval of a ratio of costs per success: {clusters} clusters"
        yield Cell(name, partial(covers_cost_per_success, clusters), covered, 93, 100)
    for kappa, n in ((0.4, 100), (0.7, 100), (0.9, 100), (0.9, 400), (0.95, 100)):
        yield Cell(f"interval of kappa {kappa}: {n} items", partial(covers_kappa, kappa, n), covered, 93, 100)


def leaked(way: str, place: str, seed: int) -> tuple[bool, bool]:
    """Is a held-out request, written otherwise and put with its answer somewhere into a row, found? Naive: the texts of
    requests are compared."""
    rng = Random(f"{seed} {way}")
    asked = rng.choice(_asked())
    text = WAYS[way](rng, asked.prompt)
    call = call_text(asked.target["tool"], asked.target["arguments"])
    answers: dict[str, list[dict[str, Any]]] = {
        "asked": [_user(text), _agent(call)],
        "after a search": [_user(text), _agent(call_text("search", {"query": "it"})), _agent(call)],
        "in a fence": [_user(text), _agent(f"```json\n{call}\n```")],
        "after other words": [_user(text), _agent(f"Sure! {call}")],
        "in the system prompt": [
            {"role": "system", "content": f"For example:\n{text}\n{call}"},
            _user("Hello"),
            _agent("Hi"),
        ],
        "in a result": [_user("Hello"), {"role": "tool", "content": f"{text}\n{call}"}, _agent("Hi")],
    }
    messages = answers[place]
    row = {"task_id": "r", "prompt": messages[:1], "completion": messages[1:]}
    held = item_of_task(Task("t", asked.prompt, asked.target))
    report = check(items_of_row(row), [held])
    found = report.flagged if way != "as it is" else report.blocked
    return bool(found), any(message["content"] == asked.prompt for message in messages)


def cheated(kind: str, seed: int) -> tuple[bool, bool]:
    """Does any cheat made of a right answer pass? Naive: whatever makes the wanted calls passes."""
    if kind == "workplace":
        env, task = envs.build(kind, {}, {}), next(iter(generate(1, seed=seed)))
    else:
        asked = Random(seed).choice(_asked())
        tools = [*story.TOOLS, {"name": "mail_out", "x-outward": True, "parameters": {"type": "object"}}]
        env, task = envs.build(kind, {"tools": tools}, {}), Task("t", asked.prompt, asked.target, asked.state)
    right = _calls(envs.episode(env, task, lambda seen: env.solve(task, seen)))
    passes = naive = False
    for say in cheats.cheats(env, task).values():
        messages = envs.episode(env, task, say)
        verdict = env.verifier(task)(Trace.from_messages("", messages), task.target)
        if not cheats.has_changed_nothing(env, task, say):
            passes = passes or bool(verdict.success)
        naive = naive or not Counter(right) - Counter(_calls(messages))
    written = cheats.past_the_limit(env, task)
    passes = passes or bool(written and env.verifier(task)(Trace.from_messages("", written), task.target).success)
    return passes, naive


def _calls(messages: Sequence[Message]) -> list[bytes]:
    return [canonical([call.name, call.arguments]) for message in messages for call in calls_of(message)]


def look_alike(seed: int) -> tuple[bool, bool]:
    """Is another request of the same template blocked? Naive: whatever is a near-duplicate."""
    rng = Random(seed)
    wording = rng.choice(_asked()).wording
    one, other = rng.sample([each for each in _asked() if each.wording == wording], 2)
    rows = [Item(name, each.prompt, wanted_of(each.target)) for name, each in (("r", one), ("t", other))]
    report = check(rows[:1], rows[1:])
    return bool(report.blocked), bool(report.flagged)


@cache
def _asked() -> list[story.Request]:
    """Requests of eight words or more, each once."""
    every = story.sessions(1000, seed=3)
    return list({each.prompt: each for each in every if len(each.prompt.split()) >= 8}.values())


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _agent(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def leak_cells() -> Iterator[Cell]:
    for place in ("asked", "after a search", "in a fence", "after other words", "in the system prompt", "in a result"):
        yield Cell(f"leak, exact, {place}: blocked", partial(leaked, "as it is", place), "100%", 100, 100)
    for way in WAYS:
        if way != "as it is":
            yield Cell(f"leak, {way}: flagged", partial(leaked, way, "asked"), "at least 95%", 95, 100)
    yield Cell("another request of the same template: blocked", look_alike, "0%", 0, 0)


def cheat_cells() -> Iterator[Cell]:
    for kind in ("workplace", "tool_call"):
        name = f"cheats made of right answers, {kind.replace('_', ' ')}: any passes"
        yield Cell(name, partial(cheated, kind), "0%", 0, 0)


def audit_cells() -> Iterator[Cell]:
    for audits in (1, 3, 10):
        name = f"10% false passes, {audits} audits: green" if audits > 1 else "10% false passes, one audit: green"
        yield Cell(name, partial(audited, 0.1, audits), "at most 5%", 0, 5)
    yield Cell("1% false passes, up to 3 audits: green", partial(audited, 0.01, 3), "at least 90%", 90, 100)


def detector_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what the detectors that are on by default find among recorded runs that are held out; naive: every run is
    proposed."""
    found = [run for run in held_out.runs(folder, DEFINITIONS) if run.agent in held_out.AGENTS]
    fail = [run for run in found if run.fails]
    told = [run for run in found if run.proposals]
    unsafe = [run for run in found if run.of("unsafe_call")]
    for name, counted, among, naive, least in (
        ("recall", [run for run in fail if run.proposals], fail, 100.0, 80),
        ("precision", [run for run in told if run.fails], told, 100 * len(fail) / len(found), 90),
        ("precision of unsafe_call", [run for run in unsafe if run.fails], unsafe, 100 * len(fail) / len(found), 85),
    ):
        value = round(100 * len(counted) / len(among), 1)
        yield {
            "name": f"detectors on hold-out agents, n = {len(among):,}: {name}",
            "value": value,
            "naive": round(naive, 1),
            "wanted": f"at least {least}%",
            "holds": value >= least,
        }


def measure(cell: Cell | Batch, runs: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    if isinstance(cell, Batch):
        value, naive = cell.at_once(runs)
    else:
        found = list(pool.map(cell.once, range(runs), chunksize=max(1, runs // 32)))
        value, naive = (100 * sum(each[place] for each in found) / runs for place in (0, 1))
    value = round(value, 1)
    return {
        "name": cell.name,
        "value": value,
        "naive": round(naive, 1),
        "wanted": cell.wanted,
        "holds": cell.low <= value <= cell.high,
    }


def table(found: Sequence[dict[str, Any]], runs: int) -> str:
    lines = [f"{runs:,} runs a line.", "", "| | here, % | naive, % | wanted | |", "|---|---|---|---|---|"]
    for row in found:
        said = "holds" if row["holds"] else "**not**"
        lines.append(f"| {row['name']} | {row['value']} | {row['naive']} | {row['wanted']} | {said} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--only", default="", help="lines in whose name these words are")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--workbench", type=Path, help="a clone of github.com/olly-styles/WorkBench")
    given = parser.parse_args()
    pages = {
        "gate.md": chain(gate_cells(), interval_cells(), audit_cells(), leak_cells(), cheat_cells()),
        "ramp.md": ramp_cells(),
    }
    found = []
    with ProcessPoolExecutor() as pool:
        for page, cells in pages.items():
            rows = []
            for cell in (each for each in cells if given.only in each.name):
                rows.append(measure(cell, given.runs, pool))
                said = f"{rows[-1]['value']:6.1f} {rows[-1]['naive']:6.1f}  {cell.name} ({cell.wanted})"
                print(said, file=sys.stderr)
            if not given.json and given.only in ("", page.removesuffix(".md")):
                put_into(DOCS / page, table(rows, given.runs))
            found += rows
    if given.workbench:
        found += [row for row in detector_rows(given.workbench) if given.only in row["name"]]
    if given.json:
        print(json.dumps(found))


def put_into(page: Path, found: str) -> None:
    text = page.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    page.write_text(f"{text[:start]}\n{found}\n{text[end:]}")


if __name__ == "__main__":
    main()
