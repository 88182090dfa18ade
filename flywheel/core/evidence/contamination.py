"""Whether training data holds something of a held-out set, found at six levels, each with its evidence.

    found = check(train, held_out)          every finding, and the verdict: clean, warned or contaminated
    found.among({"mail/t-3", …})            the same for a part of the held-out items
    duplicates(items), alike(items)         what stands twice, or nearly, inside one set

Three levels block: the same task, the same source, the same content. Three only warn, for they are no proof: the same
request with another answer, a shared run of 13 words, and a near-duplicate (Jaccard of character shingles, candidates
by MinHash, and by the answer, where less likeness will do). Why this line and no other: docs/design/contamination.md.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Literal

from flywheel.core.digests import canonical, read_json
from flywheel.core.evidence.compared_items import Item, written_calls
from flywheel.core.evidence.similarity import near_duplicates
from flywheel.core.evidence.similarity.near_duplicates import SHINGLE
from flywheel.core.evidence.similarity.ngrams import SHORTEST, WORDS, SharedRuns, WholeTexts, words_of
from flywheel.core.text.normal_form import normalise
from flywheel.core.text.number_words import percent

Level = Literal["task", "source", "content", "request", "passage", "near"]
Verdict = Literal["clean", "warned", "contaminated"]

LEVELS: Final[Mapping[Level, str]] = {
    "task": "same task",
    "source": "same source",
    "content": "same request and answer",
    "request": "same request, another answer",
    "passage": f"{WORDS} words in a row",
    "near": "near-duplicate",
}
"""In the order in which they weigh."""
BLOCKING: Final[tuple[Level, ...]] = ("task", "source", "content")
NEAR, NEAR_ANSWERED = 0.8, 0.3
"""Jaccard similarity from which two requests are near-duplicates, and from which they are where the answer is the same
too: of a dozen words, one that is changed takes a fifth of the runs of characters with it."""
COMMON_ANSWER: Final = 20
"""An answer that more held-out items have is the template's, and tells no two requests apart."""
METHOD: Final = 3
"""Raise it when other things are found: what was checked before is then checked again."""
KEPT: Final = 50
"""Findings of each level that `as_dict` keeps with their evidence; counts and blocked items are always whole."""
HELD, FEWEST = 5, 3
"""Words of a request, and of an answer in words, that are looked for in whatever a row says."""
CLIP: Final = 300
"""Characters of a text that a finding quotes."""
AT_ONCE: Final = 10_000
"""Training items that are held and compared together."""
CHARACTERS_AT_ONCE: Final = 8_000_000
"""Of the texts of these, about."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    held_out: str
    train: str
    """The training item that shows it best."""
    times: int
    """How many training tasks show it."""
    shared: str
    """What they have in common."""
    asked: str
    """The held-out request, and the training item's."""
    trained: str
    likeness: float | None = None


@dataclass(frozen=True, slots=True)
class _Near:
    """The training item whose request is most like one that is held out."""

    item: Item
    likeness: float
    is_answered: bool
    """Whether it has the same answer too."""


@dataclass(frozen=True, slots=True)
class Report:
    train: int
    held_out: int
    findings: list[Finding] = field(default_factory=list)
    """At most one of each level for a held-out item, in the order of `LEVELS`."""

    @property
    def verdict(self) -> Verdict:
        if any(finding.level in BLOCKING for finding in self.findings):
            return "contaminated"
        return "warned" if self.findings else "clean"

    @property
    def counts(self) -> dict[str, int]:
        """Held-out items by level."""
        found = Counter(finding.level for finding in self.findings)
        return {level: found[level] for level in LEVELS}

    @property
    def blocked(self) -> list[str]:
        """Held-out items on which a score would mean nothing."""
        return sorted({finding.held_out for finding in self.findings if finding.level in BLOCKING})

    @property
    def flagged(self) -> list[str]:
        """Held-out items of which anything was found."""
        return sorted({finding.held_out for finding in self.findings})

    def among(self, held_out: Collection[str]) -> "Report":
        """Return the report on these held-out items alone."""
        kept = [finding for finding in self.findings if finding.held_out in held_out]
        return replace(self, held_out=len(held_out), findings=kept)

    def without_words(self, held_out: Collection[str]) -> "Report":
        """The same without what these held-out items ask, which nobody is to read."""
        said = [replace(each, asked="", shared="") if each.held_out in held_out else each for each in self.findings]
        return replace(self, findings=said)

    def as_dict(self) -> dict[str, Any]:
        """JSON: the verdict, the counts, the items, and of each level the first findings."""
        shown: list[dict[str, Any]] = []
        for level in LEVELS:
            shown += [asdict(finding) for finding in self.findings if finding.level == level][:KEPT]
        return {
            "verdict": self.verdict,
            "train": self.train,
            "held_out": self.held_out,
            "counts": self.counts,
            "blocked": self.blocked,
            "flagged": self.flagged,
            "findings": shown,
        }


# The check


@dataclass(frozen=True, slots=True)
class _Read:
    """An item and its request as it is compared."""

    item: Item
    text: str


def check(train: Iterable[Item], held_out: Iterable[Item]) -> Report:
    """Everything of the held-out items that the training items have too.

    What blocks an item is not told again by what only warns.
    Whole requests, and what is like one and has its answer, are compared at each turn of a conversation that comes in
    several rows; what is only like a request, or a passage of one, in its last row alone. Time is about linear in both:
    thousands of held-out items against tens of thousands of rows take seconds. Training items are read once, a part at
    a time (`AT_ONCE`, `CHARACTERS_AT_ONCE`), so that memory does not grow with them; those of one id belong next to
    each other.
    """
    comparison = _Comparison(held_out)
    for part in _parts(train):
        comparison.add(part)
    return comparison.report()


def _parts(items: Iterable[Item]) -> Iterable[list[Item]]:
    """Cut where the id changes, for the rows of a conversation are compared together."""
    part: list[Item] = []
    size = 0
    for item in items:
        is_full = len(part) >= AT_ONCE or size >= CHARACTERS_AT_ONCE
        if is_full and item.id != part[-1].id:
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item.prompt) + len(item.begun) + sum(map(len, item.answers)) + sum(map(len, item.texts))
    yield part


@dataclass(slots=True)
class _Shown:
    """Training items that show one thing of a held-out one."""

    first: Item
    ids: set[str]


class _Comparison:
    """Held-out items, and what the training items that were added so far have of them."""

    def __init__(self, held_out: Iterable[Item]) -> None:
        self.tasks = tasks = [_Read(item, _folded(item.prompt)) for item in held_out]
        self.train = 0
        self.ids, self.sources, self.texts = (dict[str, list[int]]() for _ in range(3))
        for at, task in enumerate(tasks):
            self.ids.setdefault(task.item.id, []).append(at)
            self.texts.setdefault(task.text, []).append(at)
            for source in task.item.sources:
                self.sources.setdefault(source, []).append(at)
        self.shown: dict[tuple[int, Level, str], _Shown] = {}
        """By place of the held-out item, level, and the source, if it is one."""
        self.runs = tuple(
            SharedRuns[Item](texts)
            for texts in (
                [task.text for task in tasks],
                [normalise(task.item.later) for task in tasks],
                [_answer_text(task) for task in tasks],
            )
        )
        self.whole = WholeTexts([task.text for task in tasks], HELD)
        self.within: dict[str, set[int]] = {}
        """Requests within a text that many rows share, such as a system prompt."""
        self.sketches: Any = near_duplicates.Sketches([task.text for task in tasks]) if tasks else ()
        self.shingles = [near_duplicates.shingles(task.text[: near_duplicates.READ]) for task in tasks]
        self.answers = _answer_index(tasks)
        self.near: dict[int, _Near] = {}

    def add(self, items: Sequence[Item]) -> None:
        rows = [_Read(item, _folded(item.prompt)) for item in items]
        self.train += len(rows)
        self.within = {}
        for row in rows:
            self._add_same(row)
            self._add_answered(row)
            self._add_held(row.item)
        texts = [row.text for row in rows]
        for runs, own in zip(self.runs, (texts, [*map(_said_text, rows)], [*map(_answer_text, rows)]), strict=True):
            kept = _ends(rows, own)
            runs.add([own[at] for at in kept], [_as_shown(items[at]) for at in kept], [items[at].id for at in kept])
        kept = _ends(rows, texts)
        nearest = near_duplicates.nearest([texts[at] for at in kept], self.sketches, NEAR)
        for task, (place, likeness) in nearest.items():
            self._add_near(task, items[kept[place]], likeness, is_answered=False)

    def _add_same(self, row: _Read) -> None:
        """Note the ids, sources and whole requests that both have."""
        item = row.item
        for at in self.ids.get(item.id, ()):
            self._show(at, "task", item)
        for source in item.sources:
            for at in self.sources.get(source, ()):
                self._show(at, "source", item, source)
        for text in {row.text, _folded(item.begun)} - {""}:
            for at in self.texts.get(text, ()):
                self._show(at, "request", item)
                if _is_same_answer(item, self.tasks[at].item):
                    self._show(at, "content", item)

    def _add_answered(self, row: _Read) -> None:
        """Note the requests that are somewhat like this one and have the same answer."""
        keys = {key for answer in row.item.answers for key in _answer_keys(answer)}
        places = {at for key in keys for at in self.answers.get(key, ())}
        if not places:
            return
        shingles = near_duplicates.shingles(row.text[: near_duplicates.READ])
        for at in sorted(places):
            likeness = near_duplicates.jaccard(self.shingles[at], shingles)
            if likeness >= NEAR_ANSWERED and _is_same_answer(row.item, self.tasks[at].item):
                self._add_near(at, row.item, likeness, is_answered=True)

    def _add_near(self, at: int, item: Item, likeness: float, *, is_answered: bool) -> None:
        if at not in self.near or (is_answered, likeness) > (self.near[at].is_answered, self.near[at].likeness):
            self.near[at] = _Near(_as_shown(item), likeness, is_answered)

    def _add_held(self, item: Item) -> None:
        """Note the requests that any message holds, and whether a right answer stands in the row as well."""
        held: set[int] = set()
        for text in item.texts:
            if text not in self.within:
                self.within[text] = self.whole.within(_folded(text))
            held |= self.within[text]
        written = [call for text in item.texts for call in written_calls(text)] if held else []
        made = Counter(_folded(canonical(call).decode()) for call in written)
        words = " ".join(words_of(_folded(" ".join(item.texts)))) if held else ""
        for at in held:
            task = self.tasks[at]
            if any(_stands_in(answer, made, words) for answer in task.item.answers):
                self._show(at, "content", item)
            elif len(words_of(task.text)) >= SHORTEST and (at, "request", "") not in self.shown:
                self._show(at, "passage", item, task.text)

    def _show(self, at: int, level: Level, item: Item, source: str = "") -> None:
        key = at, level, source
        if key not in self.shown:
            self.shown[key] = _Shown(_as_shown(item), set())
        self.shown[key].ids.add(item.id)

    def report(self) -> Report:
        findings = [finding for at in range(len(self.tasks)) for finding in self._same(at)]
        blocked = {finding.held_out for finding in findings if finding.level in BLOCKING}
        findings = [finding for finding in findings if finding.level in BLOCKING or finding.held_out not in blocked]
        asked = {finding.held_out for finding in findings if finding.level == "request"}
        passages: dict[int, tuple[list[Item], str]] = {}
        for runs in self.runs:
            passages = runs.hits() | passages
        for at, task in enumerate(self.tasks):
            if at not in passages and (shown := self.shown.get((at, "passage", task.text))):
                others = sorted(shown.ids - {shown.first.id})
                passages[at] = [shown.first, *(replace(shown.first, id=name) for name in others)], task.text
        for at, (items, words) in sorted(passages.items()):
            if self.tasks[at].item.id not in blocked:
                findings.append(self._finding("passage", at, items[0], len({item.id for item in items}), _clip(words)))
        for at, near in sorted(self.near.items()):
            if self.tasks[at].item.id not in blocked | asked:
                same = f"{percent(near.likeness)} of the runs of {SHINGLE} characters that either has"
                same += ", and the same answer" if near.is_answered else ""
                findings.append(replace(self._finding("near", at, near.item, 1, same), likeness=near.likeness))
        order = {level: number for number, level in enumerate(LEVELS)}
        findings.sort(key=lambda finding: order[finding.level])
        return Report(self.train, len(self.tasks), findings)

    def _same(self, at: int) -> Iterable[Finding]:
        task = self.tasks[at]
        sources = sorted(source for source in task.item.sources if (at, "source", source) in self.shown)
        told: tuple[tuple[Level, str, str], ...] = (
            ("task", "", task.item.id),
            ("source", sources[0] if sources else "", ", ".join(sources[:3])),
            ("content", "", _clip(" → ".join([task.text, *task.item.answers[:1]]))),
            ("request", "", _clip(task.text)),
        )
        for level, source, same in told:
            is_told = level == "request" and (at, "content", "") in self.shown
            if not is_told and (shown := self.shown.get((at, level, source))):
                yield self._finding(level, at, shown.first, len(shown.ids), same)

    def _finding(self, level: Level, at: int, first: Item, times: int, same: str) -> Finding:
        task = self.tasks[at].item
        return Finding(level, task.id, first.id, times, same, _clip(task.prompt), _clip(first.prompt))


def _as_shown(item: Item) -> Item:
    """As much of a training item as a finding tells of it, which may be kept when its part goes."""
    return Item(item.id, item.prompt[: CLIP + 1])


def _is_same_answer(row: Item, task: Item) -> bool:
    """Whether the same request wants the same: a shared answer, all wanted calls among those that were made, as by who
    looks something up first, or the same world where nothing says the answer."""
    if row.answers and task.answers:
        is_shared = not set(row.answers).isdisjoint(task.answers)
        return is_shared or any(_is_among(wanted, made) for wanted in task.answers for made in row.answers)
    return bool(row.world) and row.world == task.world


def _answer_keys(answer: str) -> list[str]:
    """List what an answer is looked up by: each of its calls, or its words."""
    return _read_calls(answer) or [_folded(answer)]


def _answer_index(tasks: Sequence[_Read]) -> dict[str, list[int]]:
    """Places of the held-out items by what their answers are looked up by, the rarest of each; without the common."""
    keys = [[_answer_keys(answer) for answer in task.item.answers] for task in tasks]
    times = Counter(key for of_task in keys for key in {key for answer in of_task for key in answer})
    index: dict[str, list[int]] = {}
    for at, of_task in enumerate(keys):
        for key in {min(answer, key=lambda each: times[each]) for answer in of_task}:
            if times[key] <= COMMON_ANSWER:
                index.setdefault(key, []).append(at)
    return index


def _is_among(wanted: str, made: str) -> bool:
    """Whether calls, as `answer_of` writes them, are all among others."""
    ours, theirs = _read_calls(wanted), _read_calls(made)
    return bool(ours) and not Counter(ours) - Counter(theirs)


def _read_calls(answer: str) -> list[str]:
    """The calls of an answer, each as it is compared; nothing where it is words."""
    try:
        value = read_json(answer) if answer.startswith("[[") else []
    except (ValueError, RecursionError):
        return []
    return [_folded(canonical(call).decode()) for call in value]


def _stands_in(answer: str, made: Counter[str], words: str) -> bool:
    """Whether an answer stands in a row: all its calls among those that are made or written there, or its words."""
    if calls := _read_calls(answer):
        return not Counter(calls) - made
    own = words_of(_folded(answer))
    return len(own) >= FEWEST and f" {' '.join(own)} " in f" {words} "


_QUOTES: Final = dict.fromkeys(map(ord, "\"'`´‘’‚‛“”„‟«»‹›"))


def _folded(text: str) -> str:
    """A request as it is compared: normalised, and without quotation marks, of which each keyboard has its own."""
    return normalise(text).translate(_QUOTES)


def _said_text(read: _Read) -> str:
    return " ".join(filter(None, [read.text, normalise(read.item.later)]))


def _answer_text(read: _Read) -> str:
    return normalise(" ".join(read.item.answers[:1]))


def _ends(rows: Sequence[_Read], texts: Sequence[str]) -> list[int]:
    """Places of the texts that no other of the same id begins with, or is."""
    order = sorted(range(len(rows)), key=lambda at: (rows[at].item.id, texts[at]))
    begun = {
        at
        for at, after in pairwise(order)
        if rows[at].item.id == rows[after].item.id and texts[after].startswith(texts[at])
    }
    return [at for at in range(len(rows)) if at not in begun]


def _clip(text: str) -> str:
    return text if len(text) <= CLIP else text[: CLIP - 1] + "…"


# Inside one set


ABOUT: Final = frozenset(
    ("id", "task_id", "trajectory", "cluster", "slice", "origin", "synthetic", "rollouts", "rewards", "prompt")
)
"""What a row says of itself beside its request and its answer."""


def key_of_row(row: Mapping[str, Any]) -> str:
    """Return the key of duplicate dataset rows: the same request, however it is written, and exactly one answer."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        asked: Any = normalise(prompt)
    else:
        asked = [{**message, "content": normalise(message.get("content") or "")} for message in prompt]
    return canonical([asked, {name: value for name, value in row.items() if name not in ABOUT}]).decode()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two items of one set that are alike."""

    one: str
    other: str
    likeness: float
    asked: str
    also: str


def key_of(item: Item) -> tuple[str, tuple[str, ...], str]:
    """Return the key of duplicate items of one set: the request as it is compared, the answers and the world."""
    return normalise(item.prompt), item.answers, item.world


def duplicates(items: Sequence[Item]) -> list[tuple[int, int]]:
    """(the one that repeats, the one that came first), by place."""
    first: dict[tuple[str, tuple[str, ...], str], int] = {}
    found = [(at, first.setdefault(key_of(item), at)) for at, item in enumerate(items)]
    return [(at, before) for at, before in found if at != before]


def alike(items: Sequence[Item]) -> list[Pair]:
    """Near-duplicates inside a set, of each item the nearest before it, the most alike first. Requests that are the
    very same are none: there the answer or the world differs, or they were told as duplicates."""
    texts: dict[str, Item] = {}
    reads = [_Read(item, normalise(item.prompt)) for item in items]
    for at in _ends(reads, [read.text for read in reads]):
        texts.setdefault(reads[at].text, items[at])
    own = list(texts)
    found = near_duplicates.nearest(own, own, NEAR, before=True)
    pairs = []
    for at, (place, like) in found.items():
        one, other = texts[own[at]], texts[own[place]]
        pairs.append(Pair(one.id, other.id, like, _clip(one.prompt), _clip(other.prompt)))
    return sorted(pairs, key=lambda pair: (-pair.likeness, pair.one))
