"""The fix ladder: which is the lightest fix that the evidence supports?

From light to heavy: a change of prompt, of tools, of retrieval; then imitation (SFT), preference (DPO), reinforcement
with a verifier: of single answers (RLVR), or of whole episodes (environment RL). A lighter fix is cheaper to make, to
check and to take back, so it comes first wherever it can plausibly mend a large share of the failures.

Pure rules over counts and estimates; no model is asked. Every fix is returned: those that the evidence supports first,
from light to heavy, then the others with what blocks them. These are rules of thumb, and each says its numbers, so that
a person can disagree. Nothing here knows costs, latency, or how hard a change of prompt is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from flywheel.core.evidence.statistics.estimates import Estimate, proportion
from flywheel.core.text.number_words import n_tasks, percent, points, signed

Fix = Literal["prompt", "tool_change", "retrieval", "sft", "dpo", "rlvr", "environment_rl"]

LADDER: tuple[Fix, ...] = ("prompt", "tool_change", "retrieval", "sft", "dpo", "rlvr", "environment_rl")
"""From light to heavy."""

LABELS: dict[Fix, str] = {
    "prompt": "Change the prompt",
    "tool_change": "Change the tools",
    "retrieval": "Fix retrieval",
    "sft": "SFT on corrected actions",
    "dpo": "DPO on pass/fail pairs",
    "rlvr": "RLVR (GRPO family)",
    "environment_rl": "Environment RL (GRPO family, whole episodes)",
}

FAILURES = 10
"""Labelled failures below which shares say nothing: with 10, a share of 40% has an interval from 17 to 69%."""

DOMINANT = 0.40
"""The share of failures from which a fix aimed at their buckets is worth its turn: less leaves most as it is."""

ABLE = 0.70
"""pass@k from which the model is able and only unreliable: what a prompt or constrained output can bring out."""

BROKEN_FORMAT = 0.90
"""Share of readable outputs below which format is a problem by itself; agents in use stay above 95%."""

UNSOLVED = 0.20
"""Share of tasks that k attempts never solve (1 - pass@k) from which examples are needed: reinforcement learns nothing
from a task on which every attempt fails alike."""

CORRECTED = 20
"""Corrected actions from which SFT is worth a run; fewer teach wordings by heart."""

PAIRS = 50
"""Pass/fail pairs from which DPO is worth a run; it needs more than SFT, since a pair only says which is better."""

LEARNABLE = (0.10, 0.80)
"""pass@1 between which reinforcement has something to learn from: below, attempts hardly ever pass; above, groups of
attempts mostly pass alike, and in both cases advantages are zero."""

GAIN = 0.10
"""pass@k - pass@1 from which reinforcement can turn what works sometimes into what works: that gap is its head-room."""

TASKS = 20
"""Tasks from which reinforcement does not merely learn the tasks."""

TRAINED: tuple[Fix, ...] = ("sft", "dpo", "rlvr", "environment_rl")
HOSTED = (
    "A hosted model is not trained here: download the data for its provider, or train an open model on the same tasks."
)

WORDS: dict[Fix, str] = {"prompt": "prompt", "tool_change": "tools"}
"""What a draft changes, by the step of the ladder that it tries."""

AIMS: dict[Fix, tuple[str, ...]] = {
    "prompt": ("format_error",),
    "tool_change": ("hallucinated_api", "unsafe_action"),
    "retrieval": ("retrieval_failure",),
}
"""The buckets that a fix is aimed at. Training is aimed at whatever the data or the verifier holds."""


@dataclass(frozen=True, slots=True)
class TriedFix:
    """Draft versions of one step of the ladder that were asked the train tasks, and the best of them."""

    drafts: int
    tasks: int
    task_set: str
    trial: int
    best: str
    """Its name."""
    version: str
    gain: Estimate | None
    """Of success on the train tasks over the parent, at the level at which those of all that were compared hold; None
    where nothing is over yet."""
    compared: int = 1
    """Drafts that were compared with the parent: the best was picked among them."""
    sets: int = 1
    """Task sets that the drafts were tried on; `tasks` are those of the best one's."""
    verdict: str = ""
    """The gate's, on held-out tasks, or `approved` and what else people said of it; empty where it was not measured on
    them."""
    is_open: bool = False
    """Some of it is still being asked."""

    @property
    def is_better(self) -> bool:
        """Whether the train tasks show a gain, by an interval that knows of how many it is the best."""
        return self.gain is not None and self.gain.low is not None and self.gain.low > 0

    @property
    def is_promising(self) -> bool:
        """Whether it leads on: the gate says that it is eligible, or nobody has asked it yet and it may be."""
        return self.verdict == "eligible" or (not self.verdict and (self.is_open or self.is_better))

    def words(self, what: str) -> str:
        """Tell what was tried and how it went, in a sentence with its numbers."""
        count = f"{self.drafts} draft{'' if self.drafts == 1 else 's'} of the {what}"
        among = "" if self.sets == 1 else f"{self.sets} task sets, among them "
        tried = (
            f"{count} tried on {among}{n_tasks(self.tasks)} for training of {self.task_set} (fix trial {self.trial})"
        )
        if self.gain is None or self.gain.mean is None:
            return f"{tried}: {'under way' if self.is_open else 'nothing could be compared'}."
        interval = ""
        if self.gain.low is not None and self.gain.high is not None:
            interval = f" [{signed(100 * self.gain.low)}, {signed(100 * self.gain.high)}]"
            interval += f" (wide enough for the best of {self.compared})" if self.compared > 1 else ""
        shown = "better" if self.is_better else "not shown"
        told = f"{tried}: the best, {self.version}, gains {points(self.gain.mean)}{interval}, {shown}."
        verdict = {"eligible": "eligible", "not_shown": "not shown"}.get(self.verdict, self.verdict)
        return f"{told} On held-out tasks: {verdict}." if verdict else told


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts known about a version: its labelled failures, its baseline, and the data that people made."""

    buckets: Mapping[str, int]
    """Labelled failures by bucket, those of the versions that it was made from with them (`inherited`)."""
    pass_at_1: Estimate | None = None
    pass_at_k: Estimate | None = None
    k: int = 0
    format_valid: Estimate | None = None
    """Share of attempts whose output could be read."""
    corrected: int = 0
    """Failures for which a person wrote what should have happened."""
    pairs: int = 0
    """A passing and a failing answer to the same task."""
    turns: int = 1
    """How often a policy may speak in an attempt."""
    tried: Mapping[str, str] = field(default_factory=dict)
    """Fixes that were tried on this version and did not pass the gate, with where."""
    inherited: int = 0
    """Those of them that are of earlier versions of its line, since it has no production runs of its own yet."""
    inherited_from: str = ""
    """The versions that they are of, such as `mail@1 and mail@2`."""
    is_hosted: bool = False
    """Whether it is asked on somebody's server: nothing here can train it."""
    scored: int = 0
    """Scored attempts at the train tasks that are there already."""
    lighter: Mapping[Fix, TriedFix] = field(default_factory=dict)
    """Fixes without training that were tried on this version, by step of the ladder."""
    returned: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What did not last, in sentences, by the fix that it came of: a failure was mended by it and came back."""

    @property
    def failures(self) -> int:
        return sum(self.buckets.values())


@dataclass(frozen=True, slots=True)
class Recommendation:
    fix: Fix
    why: str
    """Sentences with their numbers and n."""
    evidence: dict[str, Any]
    """The numbers that the sentences are made of."""
    blocked_by: str = ""
    """What is missing before this fix makes sense; empty when the evidence supports it."""

    @property
    def label(self) -> str:
        return LABELS[self.fix]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"label": self.label}


def recommend(evidence: Evidence) -> list[Recommendation]:
    """Every fix, the recommended one first. When even the first is blocked, the evidence supports none."""
    every = [RULES[fix](evidence) for fix in LADDER]
    return [item for item in every if not item.blocked_by] + [item for item in every if item.blocked_by]


def _prompt(evidence: Evidence) -> Recommendation:
    share = _share(evidence, "prompt")
    readable = _mean(evidence.format_valid)
    able = _mean(evidence.pass_at_k)
    why = [_share_sentence(evidence, "prompt", "are broken format")]
    why += [f"{_shown(evidence.format_valid)} of outputs can be read."] if evidence.format_valid else []
    why += [_able_sentence(evidence)] if able is not None else []
    numbers = _numbers(share, evidence, "format_valid", "pass_at_k")
    format_fails = _is_dominant(share) or (readable is not None and readable < BROKEN_FORMAT)
    if evidence.is_hosted:
        blocked = ""
        why.append("A hosted model is changed by its prompt, tools and examples first.")
    elif not format_fails:
        blocked = "Formatting is not the main failure."
    elif able is None:
        blocked = _needs_baseline("pass@k says whether the model is able at all")
    elif able < ABLE:
        blocked = f"The model is not able yet: pass@{evidence.k} is {percent(able)} and needs to reach {percent(ABLE)}."
    else:
        blocked = ""
        why.append("The model can and its output does not hold: constrain the output or say the format more clearly.")
    return _result(evidence, "prompt", why, numbers, blocked)


def _outside_the_model(fix: Fix, what: str, otherwise: str, advice: str) -> Callable[[Evidence], Recommendation]:
    """The rule of a fix that no model is trained for: it makes sense where its buckets dominate."""

    def rule(evidence: Evidence) -> Recommendation:
        share = _share(evidence, fix)
        why = [_share_sentence(evidence, fix, what)]
        blocked = "" if _is_dominant(share) else _too_few(evidence, otherwise)
        why += [] if blocked else [advice]
        return _result(evidence, fix, why, _numbers(share, evidence), blocked)

    return rule


_tool_change = _outside_the_model(
    "tool_change",
    "call tools that do not exist or must not be called",
    "Invented and unsafe calls are not what fails most.",
    "Say in the prompt which tools there are, describe them better, put a guard before the unsafe ones.",
)
_retrieval = _outside_the_model(
    "retrieval",
    "act on nothing found",
    "Retrieval is not what fails most.",
    "No training puts a document into the index: look at queries, index and search tool first.",
)


def _sft(evidence: Evidence) -> Recommendation:
    able = _mean(evidence.pass_at_k)
    share = _share(evidence, "prompt")
    why = [f"{evidence.corrected} of {evidence.failures} failures have a corrected action.{_inherited(evidence)}"]
    why += [_able_sentence(evidence)] if able is not None else []
    numbers = _numbers(None, evidence, "pass_at_k") | {"corrected": evidence.corrected, "failures": evidence.failures}
    if evidence.corrected < CORRECTED:
        blocked = f"{evidence.corrected} corrected actions; {CORRECTED} are needed. Correct more failures in the queue."
    elif able is None:
        blocked = _needs_baseline("pass@k says how many tasks no attempt solves")
    elif 1 - able >= UNSOLVED:
        blocked = ""
        why.append(f"{percent(1 - able)} of tasks were never solved: only examples can show how.")
    elif _is_dominant(share):
        blocked = ""
        why.append("Broken format dominates, and examples teach a format at once.")
    else:
        blocked = f"Only {percent(1 - able)} of tasks are never solved; examples add little to what the model can do."
    return _result(evidence, "sft", why, numbers, blocked)


def _dpo(evidence: Evidence) -> Recommendation:
    why = [f"{evidence.pairs} pairs of a passing and a failing answer to the same task."]
    numbers = _numbers(None, evidence, "pass_at_1") | {"pairs": evidence.pairs}
    rate = _mean(evidence.pass_at_1)
    if evidence.pairs < PAIRS:
        blocked = f"{evidence.pairs} pairs; {PAIRS} are needed. Correct failures, or sample more attempts at each task."
    elif rate is None:
        blocked = _needs_baseline("pass@1 says whether there is something to prefer")
    elif rate < LEARNABLE[0]:
        blocked = f"pass@1 is {percent(rate)}: what is hardly ever written cannot be preferred; SFT comes before."
    else:
        blocked = ""
        why.append(f"pass@1 is {_shown(evidence.pass_at_1)}: both kinds are within the model's reach.")
    return _result(evidence, "dpo", why, numbers, blocked)


def _rlvr(evidence: Evidence) -> Recommendation:
    why, blocked = _head_room(evidence)
    why = [*why, *_offline(evidence)]
    if evidence.turns > 1:
        blocked = f"Its tasks take up to {evidence.turns} turns: environment RL plays them to their end."
    return _result(evidence, "rlvr", why, _numbers(None, evidence, "pass_at_1", "pass_at_k"), blocked)


def _environment_rl(evidence: Evidence) -> Recommendation:
    why, blocked = _head_room(evidence)
    why = [*why, *_offline(evidence)]
    if evidence.turns == 1:
        blocked = "Its tasks take one turn: RLVR plays those."
    return _result(evidence, "environment_rl", why, _numbers(None, evidence, "pass_at_1", "pass_at_k"), blocked)


RULES: dict[Fix, Callable[[Evidence], Recommendation]] = {
    "prompt": _prompt,
    "tool_change": _tool_change,
    "retrieval": _retrieval,
    "sft": _sft,
    "dpo": _dpo,
    "rlvr": _rlvr,
    "environment_rl": _environment_rl,
}


def _head_room(evidence: Evidence) -> tuple[list[str], str]:
    """Whether attempts pass often enough to learn from, and seldom enough to have something to learn."""
    rate, able = _mean(evidence.pass_at_1), _mean(evidence.pass_at_k)
    if rate is None or able is None:
        return [], _needs_baseline("pass@1 and pass@k say what sampling can find")
    why = [f"pass@1 is {_shown(evidence.pass_at_1)}, pass@{evidence.k} {_shown(evidence.pass_at_k)}."]
    if _tasks(evidence) < TASKS:
        return why, f"{_tasks(evidence)} tasks; {TASKS} are needed, or training learns the tasks themselves."
    if rate < LEARNABLE[0]:
        return why, f"pass@1 is {percent(rate)}: most groups of attempts fail alike and teach nothing; SFT first."
    if rate > LEARNABLE[1]:
        return why, f"pass@1 is {percent(rate)}: most groups of attempts pass alike and teach nothing."
    if able - rate < GAIN:
        return why, f"pass@{evidence.k} is only {_points(able - rate)} above pass@1; {_points(GAIN)} are needed."
    return [*why, f"{_points(able - rate)} of head-room: what works sometimes can be made to work."], ""


def _offline(evidence: Evidence) -> list[str]:
    """Say what can be learnt from without sampling, as a sentence; empty where nothing can."""
    if not evidence.scored:
        return []
    count = "1 scored attempt" if evidence.scored == 1 else f"{evidence.scored:,} scored attempts"
    there = "exists" if evidence.scored == 1 else "exist"
    return [f"{count} at the training tasks {there}: AWR can learn offline, without sampling more."]


def _result(evidence: Evidence, fix: Fix, why: list[str], numbers: dict[str, Any], blocked: str) -> Recommendation:
    if evidence.is_hosted and fix in TRAINED:
        blocked = HOSTED
    if not blocked and fix in evidence.tried:
        blocked = f"Tried already: {evidence.tried[fix]}."
    if lighter := evidence.lighter.get(fix):
        told = lighter.words(WORDS[fix])
        why = [*why, told]
        if lighter.is_promising:
            why, blocked = [*why, _next_step(lighter)], ""
        else:
            blocked = f"Tried already. {told}"
    elif fix in TRAINED:
        why = [*why, _tried_before(evidence)]
    why = [*why, *evidence.returned.get(fix, ())]
    return Recommendation(fix, " ".join(why), numbers, blocked)


def _next_step(lighter: TriedFix) -> str:
    """Say what a promising fix waits for."""
    if lighter.verdict:
        return "Have it approved before anything is trained."
    return "Wait for its evals." if lighter.is_open else "Measure it on held-out tasks before anything is trained."


def _tried_before(evidence: Evidence) -> str:
    """Say which lighter fixes were tried before training is thought of."""
    if not evidence.lighter:
        return "Nothing lighter was tried on this version yet."
    return " ".join(["Lighter first:", *(tried.words(WORDS[fix]) for fix, tried in evidence.lighter.items())])


def _share(evidence: Evidence, fix: Fix) -> Estimate:
    return proportion(sum(evidence.buckets.get(bucket, 0) for bucket in AIMS[fix]), evidence.failures)


def _is_dominant(share: Estimate) -> bool:
    return share.mean is not None and share.n >= FAILURES and share.mean >= DOMINANT


def _too_few(evidence: Evidence, otherwise: str) -> str:
    if evidence.failures < FAILURES:
        return f"{evidence.failures} labelled failures; shares mean something from {FAILURES} on."
    return otherwise


def _share_sentence(evidence: Evidence, fix: Fix, what: str) -> str:
    share = _share(evidence, fix)
    hits = sum(evidence.buckets.get(bucket, 0) for bucket in AIMS[fix])
    return f"{hits} of {evidence.failures} labelled failures ({_shown(share)}) {what}.{_inherited(evidence)}"


def _inherited(evidence: Evidence) -> str:
    """Which of the failures are not the version's own, as a sentence; empty where all are."""
    if not evidence.inherited:
        return ""
    return (
        f" {evidence.inherited} of the {evidence.failures} are of {evidence.inherited_from}: "
        "this version has no production runs yet."
    )


def _able_sentence(evidence: Evidence) -> str:
    return f"With {evidence.k} attempts, {_shown(evidence.pass_at_k)} of {_tasks(evidence)} tasks are solved."


def _needs_baseline(why: str) -> str:
    return f"No baseline yet: {why}. Evaluate this version first."


def _tasks(evidence: Evidence) -> int:
    return evidence.pass_at_1.n if evidence.pass_at_1 else evidence.pass_at_k.n if evidence.pass_at_k else 0


def _mean(estimate: Estimate | None) -> float | None:
    return estimate.mean if estimate else None


def _points(value: float) -> str:
    return f"{100 * value:.0f} points"


def _shown(estimate: Estimate | None) -> str:
    """A rate with its interval: `71% [58, 82]`."""
    if estimate is None or estimate.mean is None:
        return "nothing"
    if estimate.low is None or estimate.high is None:
        return percent(estimate.mean)
    return f"{percent(estimate.mean)} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def _numbers(share: Estimate | None, evidence: Evidence, *names: str) -> dict[str, Any]:
    """The numbers behind the sentences, each with its interval and n."""
    found: dict[str, Any] = {} if share is None else {"share": _plain(share)}
    found |= {name: _plain(value) for name in names if (value := getattr(evidence, name)) is not None}
    return found | ({"k": evidence.k} if "pass_at_k" in found else {})


def _plain(estimate: Estimate) -> dict[str, Any]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "n": estimate.n}
