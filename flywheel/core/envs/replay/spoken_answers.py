"""Judges words without a model: an answer beside the one that is wanted, a refusal, a question.

The rules, which docs/design/replay.md explains:
  plain     an answer is words for a person: not empty, no chat marker such as `<|im_end|>`, no object in braces unless
            one is wanted, and not what the user wrote, given back
  words     every fact of the wanted text stands in the answer (numbers, ids, dates, addresses, quoted names), so do
            enough of its other words, and it denies where that does; a wanted text that is JSON is compared as JSON
  exact     the wanted text and nothing else; spaces at ends and in a row do not count
  number    the last number of the answer is that of the wanted text
  refusal   it says that it cannot or will not, or says what the wanted text says
  question  it asks
"""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from flywheel.core.digests import read_json
from flywheel.core.text.normal_form import normalise
from flywheel.core.verifiers.attempt_numbers import number_of
from flywheel.core.verifiers.attempt_places import NotThere

ENOUGH = 0.6
"""Share of the wanted text's content words from which an answer says the same."""
NOT_ALL = 0.4
"""The most that words score which are not the wanted ones."""
READ = 20_000
"""Characters of a text that are looked at."""

_MARKER = re.compile(r"<\|[^|<>]{1,40}\|>")
_ADDRESS = re.compile(r"https?://[^\s<>\"')]+|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+")
_NUMBER = re.compile(r"(?<![\w-])[\w-]{0,40}\d(?:[\w:/-]|[.,](?=\d))*")
_QUOTED = re.compile(r"[\"“„]([^\"“”„]{1,200})[\"”]|(?<!\w)['‘]([^'‘’]{1,200})['’](?!\w)")
_WORD = re.compile(r"[^\W\d_]{2,}(?:['’]t)?")
_ASKED = re.compile("[?？؟]")
_SENTENCE = re.compile(r"(?<=[.!?؟])\s+|(?<=[。！？])|\n")
_INSIDE = re.compile(r"(?<=[\w,;:)] )[^\W\d_]{2,}")
_DENIES = re.compile(r"\b(?:not|no|none|never|nothing|nobody|cannot|without)\b|\w+n['’]t\b")
_REFUSES = re.compile(
    r"\b(?:can(?:'t|not| not)(?! wait)|won't|will not"
    r"|unable|could(?:n't| not)|must (?:decline|refuse|not)|declin\w+|refuse"
    r"|not (?:able|allowed|permitted|possible|authori[sz]ed)|do(?:n't| not) have (?:access|permission)"
    r"|no (?:access|permission)|against (?:the |our |my )?(?:policy|policies|rules))\b"
)
_LITTLE = """
a an the and or of to in on at for with by from as is are was were be been being it its this
that these those i you he she we they me my your his her our their have has had do does did
will would can could should may might there here so if then than now just also please
"""
_STOP = frozenset(_LITTLE.split())
"""Words that carry no meaning of their own."""
_ASKING = frozenset(("what", "which", "who", "whom", "whose", "when", "where", "why", "how"))
_OFFERING = frozenset(("shall", "want", "like", "anyth", "go", "ahead", "proce"))
"""Beginnings of words with which one offers, as `_content` gives them."""
_ASKS_FOR = re.compile(rf"\b(?:{'|'.join(sorted(_ASKING))})\b")
_SAYS_WHAT = re.compile(
    r"^\W*(?:is|are|was|were|am|do|does|did|has|have|had)(?! you\b)\b"
    r"|\b(?:shall|should|may|can|could|must) (?:i|we)\b|\b(?:want|like|wish) (?:me|us)\b|\bif (?:i|we)\b"
)
"""Beginnings of a question that a yes answers, whatever is said in it later: “shall I send it when it is ready?”."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """The marks of an answer."""

    score: float
    """1 where it is what is wanted."""
    reason: str
    """Why it is not, or a word for that it is."""


def problem(text: str, wanted: str, heard: Collection[str]) -> str:
    """Why an answer is no words for a person; empty where it is. `heard` is what users wrote before it."""
    if not text.strip():
        return "it says nothing"
    if _MARKER.search(text):
        return "it holds markers of a chat template"
    if "{" in text and "{" not in wanted and re.search(r"\{\s*\"", text):
        return "it holds an object in braces"
    same = normalise(text)
    if same != normalise(wanted) and any(same == normalise(each) for each in heard):
        return "it only repeats the user's words"
    return ""


def words(text: str, wanted: str) -> Spoken:
    """The answer beside the wanted one."""
    if (value := _json(wanted)) is not None:
        is_equal = _json(text) == value
        return Spoken(float(is_equal), "the wanted words" if is_equal else "it is not the JSON that is wanted")
    if normalise(text) == normalise(wanted):
        return Spoken(1.0, "the wanted words")
    said, right = _plain(text), _plain(wanted)
    missing = [fact for fact in facts(wanted) if not _stands(fact, said)]
    content, own = _content(right), _content(said)
    covered = len(content & own) / len(content) if content else 1.0
    denies = bool(_DENIES.search(right)), bool(_DENIES.search(said))
    problems = [f"{missing[0]!r} is missing"] if missing else []
    if covered < ENOUGH:
        problems.append(f"{len(content & own)} of {len(content)} content words are there")
    if denies[0] != denies[1]:
        problems.append("the wanted words deny something" if denies[0] else "it denies something")
    if not problems:
        return Spoken(1.0, "the wanted words")
    count = len(facts(wanted))
    return Spoken(NOT_ALL * covered * (1 - len(missing) / count if count else 1), "; ".join(problems))


def exact(text: str, wanted: str) -> Spoken:
    """Whether the answer is the wanted text, capitals and all."""
    is_same = " ".join(text.split()) == " ".join(wanted.split())
    return Spoken(float(is_same), "the wanted text" if is_same else "it is not exactly the wanted text")


def number(text: str, wanted: str) -> Spoken:
    """Whether the answer ends with the wanted number, whatever is said before and after it."""
    try:
        made, right = number_of(text), number_of(wanted)
    except NotThere as error:
        return Spoken(0.0, str(error))
    is_same = math.isclose(made, right, rel_tol=1e-9, abs_tol=1e-12)
    return Spoken(float(is_same), "the wanted number" if is_same else f"its last number is {made:g}, not {right:g}")


def refusal(text: str, wanted: str) -> Spoken:
    """Whether the answer says that it cannot or will not, or what the wanted refusal says."""
    if _REFUSES.search(_plain(text)) or (wanted and words(text, wanted).score == 1.0):
        return Spoken(1.0, "a refusal")
    return Spoken(0.0, "it does not say that it can't or won't")


def question(text: str, wanted: str) -> Spoken:
    """Whether the answer asks, or says what the wanted question says."""
    if _ASKED.search(_ADDRESS.sub("", text)) or (wanted and words(text, wanted).score == 1.0):
        return Spoken(1.0, "a question")
    return Spoken(0.0, "it asks nothing")


def names_the_same(text: str, other: str) -> bool:
    """Whether two texts name the same things: the same facts, the same names inside of sentences, and of the other's
    words that mean something most; where it asks for a word one is enough. Of questions that a yes answers one may say
    less than the other, and not both something else: a yes to sending is none to deleting, whatever else they share."""
    said, heard = _plain(text), _plain(other)
    if not all(_stands(each, said) for each in _things(other)) or not all(
        _stands(each, heard) for each in _things(text)
    ):
        return False
    asks, asked = _question_in(text), _question_in(other)
    if bool(_DENIES.search(asks or said)) != bool(_DENIES.search(asked or heard)):
        return False
    if _is_open(asked):
        wanted = _meaning(asked) - _ASKING
        return bool(_shared(wanted, _meaning(asks)) if wanted else _meaning(asked) & _meaning(asks))
    if _is_open(asks):
        return False
    wanted, own, content, every = _meaning(asked), _meaning(asks), _meaning(heard), _meaning(said)
    missing, more = len(wanted) - len(_shared(wanted, every)), len(own) - len(_shared(own, content))
    if (missing and more) or more > (1 - ENOUGH) * len(own):
        return False
    return len(_shared(content, every)) >= ENOUGH * len(content)


def _question_in(text: str) -> str:
    """The sentences that ask, as they are compared; empty where none does."""
    return _plain(" ".join(each for each in _SENTENCE.split(text[:READ]) if _ASKED.search(each)))


def _is_open(question: str) -> bool:
    """Whether it asks for a word, and not for a yes."""
    found = _ASKS_FOR.search(question)
    return found is not None and not _SAYS_WHAT.search(question[: found.start()])


def _meaning(text: str) -> set[str]:
    return _content(text) - _OFFERING


def _shared(words: Collection[str], others: Collection[str]) -> list[str]:
    """Those of the words that stand among the others, whatever their endings."""
    return [word for word in words if any(word.startswith(one) or one.startswith(word) for one in others)]


class Known:
    """Texts that are known, as they are compared: each is read once, however often somebody asks."""

    def __init__(self, *texts: str) -> None:
        self.words = set[str]()
        self._texts: list[str] = []
        self._facts = set[str]()
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        plain = normalise(text).replace("’", "'")
        self._texts.append(plain)
        self.words |= _content(plain)

    def has(self, fact: str) -> bool:
        if fact not in self._facts and any(_stands(fact, text) for text in self._texts):
            self._facts.add(fact)
        return fact in self._facts


def gives_away(text: str, wanted: str, known: Known) -> bool:
    """Whether a text tells a fact of the wanted one, or most of its other words, as far as they are not known."""
    said = _plain(text)
    if any(_stands(fact, said) and not known.has(fact) for fact in facts(wanted)):
        return True
    new = _content(_plain(wanted)) - known.words
    return bool(new) and len(new & _content(said)) >= ENOUGH * len(new)


def _things(text: str) -> list[str]:
    """Facts, and words that are written large though they begin no sentence."""
    names = (match.group() for match in _INSIDE.finditer(text[:READ]))
    return [*facts(text), *(_plain(name) for name in names if name[0].isupper())]


def _plain(text: str) -> str:
    return normalise(text[:READ]).replace("’", "'")


def facts(text: str) -> list[str]:
    """Numbers, ids, dates, addresses and quoted names, each once, as they are compared."""
    text = text[:READ]
    found = [match.group() for match in _ADDRESS.finditer(text)]
    found += [match[1] or match[2] for match in _QUOTED.finditer(text)]
    found += [match.group() for match in _NUMBER.finditer(_ADDRESS.sub(" ", text))]
    return list(dict.fromkeys(filter(None, map(_plain, found))))


def _stands(fact: str, text: str) -> bool:
    """Whether a fact is in a text, not within a longer number or word; thousands may be set apart."""
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text), re.sub(r"(?<=\d),(?=\d{3}\b)", "", fact)
    return any(re.search(rf"(?<![\w]){re.escape(one)}(?!\w)", each) for each, one in ((text, fact), plain))


def _content(text: str) -> set[str]:
    """Words that carry meaning, by their beginnings, so that an ending does not tell them apart."""
    return {word[:5] for word in _WORD.findall(text) if word not in _STOP}


def _json(text: str) -> Any:
    """The object or list that a text is, or None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return None
