"""What of a held-out set stands in training data: planted leaks are found, templates alone block nothing."""

import random
import string
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.envs import Task, tictactoe
from flywheel.core.envs.workplace import request_templates
from flywheel.core.evidence import contamination
from flywheel.core.evidence.compared_items import (
    Item,
    answer_of,
    asked_in,
    item_of_prompt,
    item_of_row,
    item_of_task,
    wanted_of,
)
from flywheel.core.evidence.contamination import BLOCKING, COMMON_ANSWER, LEVELS, NEAR, alike, check, duplicates
from flywheel.core.evidence.similarity import near_duplicates
from flywheel.core.evidence.similarity.ngrams import COMMON
from flywheel.core.text.normal_form import normalise
from flywheel.core.traces import Message, ToolCall, call_forms
from flywheel.core.traces.call_forms import LABELS
from flywheel.core.traces.tooling import call_text
from tests.planted_leaks import WAYS
from workers.reference import story

WORDS = [
    f"{a}{b}{c}" for a in ("mo", "ta", "ri", "lu") for b in ("ne", "ko", "sa", "vi") for c in string.ascii_lowercase
]


def item(number: int, prompt: str, *answers: str, **fields: Any) -> Item:
    return Item(f"t-{number}", prompt, answers, **{"sources": frozenset({f"session-{number}"}), **fields})


def spoken(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def levels(train: list[Item], held_out: list[Item]) -> set[str]:
    return {finding.level for finding in check(train, held_out).findings}


A = item(1, "Cancel my first meeting on December 13", "delete 13")
B = item(2, "Cancel my first meeting on December 14", "delete 14")


def test_nothing_in_common_is_clean() -> None:
    report = check([A], [item(3, "Write to Bako about lunch", "send")])
    assert (report.verdict, report.findings, report.train, report.held_out) == ("clean", [], 1, 1)


@pytest.mark.parametrize(
    ("held_out", "level"),
    [
        (replace(B, id=A.id), "task"),
        (replace(B, sources=A.sources | B.sources), "source"),
        (replace(B, prompt=A.prompt, answers=A.answers), "content"),
        (replace(B, prompt="  CANCEL my first\n meeting on December １３. ", answers=A.answers), "content"),
    ],
)
def test_the_same_task_source_or_content_blocks(held_out: Item, level: str) -> None:
    report = check([A], [held_out])
    assert ([finding.level for finding in report.findings], report.verdict) == ([level], "contaminated")
    assert report.blocked == [held_out.id]
    assert report.findings[0].train == A.id


def test_a_template_that_differs_in_one_entity_is_shown_and_does_not_block() -> None:
    report = check([A], [B])
    assert (report.verdict, report.counts["near"]) == ("warned", 1)
    own, held_out = (near_duplicates.shingles(normalise(row.prompt)) for row in (A, B))
    assert report.findings[0].likeness == pytest.approx(near_duplicates.jaccard(own, held_out))
    assert (report.findings[0].asked, report.findings[0].trained) == (B.prompt, A.prompt)


def test_the_same_request_with_another_answer_warns_and_is_told_once() -> None:
    report = check([A], [replace(B, prompt=A.prompt)])
    assert ([finding.level for finding in report.findings], report.verdict) == (["request"], "warned")


def test_without_an_answer_the_world_decides() -> None:
    game, same, other = (Item(f"g-{n}", "Your move: . . .", world=world) for n, world in enumerate("AAB"))
    assert levels([game], [same]) == {"content"}
    assert levels([game], [other]) == {"request"}
    assert levels([replace(game, world="")], [replace(same, world="")]) == {"request"}


def test_thirteen_words_in_a_row_warn_and_twelve_of_more_do_not() -> None:
    rng = random.Random(3)
    run = spoken(rng, 13).split()
    train = item(1, " ".join([*rng.choices(WORDS, k=40), *run, *rng.choices(WORDS, k=40)]))
    held_out = item(2, f"please hear me {' '.join(run).upper()}, and then quite something else entirely")
    (finding,) = check([train], [held_out]).findings
    assert (finding.level, finding.shared) == ("passage", " ".join(run))
    assert levels([train], [item(2, f"please hear me {' '.join(run[:12])} and then quite something else")]) == set()


def test_a_short_request_is_looked_for_as_a_whole_from_eight_words_on() -> None:
    rng = random.Random(4)
    asked = spoken(rng, 8)
    around = f"{spoken(rng, 30)} {asked} {spoken(rng, 30)}"
    assert levels([item(1, around)], [item(2, asked)]) == {"passage"}
    assert levels([item(1, around)], [item(2, " ".join(asked.split()[:7]))]) == set()


def test_a_passage_of_the_answer_counts_too() -> None:
    letter = spoken(random.Random(5), 30)
    assert levels(
        [item(1, "Write to Bako", letter)], [item(2, "Answer the mail of Nadia", f"Dear Nadia, {letter}")]
    ) == {"passage"}


@pytest.mark.parametrize(("times", "found"), [(COMMON, True), (COMMON + 1, False)])
def test_wording_that_everybody_uses_says_nothing(times: int, found: bool) -> None:
    rng = random.Random(6)
    opening = spoken(rng, 14)
    train = [item(number, f"{opening} {spoken(rng, 60)}") for number in range(times)]
    assert ("passage" in levels(train, [item(99, f"{opening} {spoken(rng, 60)}")])) is found


def test_copies_of_one_task_do_not_make_its_wording_common() -> None:
    rng = random.Random(7)
    passage = spoken(rng, 14)
    train = [item(1, f"{passage} {spoken(rng, 60)}") for _ in range(COMMON + 5)]
    (finding,) = check(train, [item(2, f"{spoken(rng, 60)} {passage}")]).findings
    assert (finding.level, finding.times) == ("passage", 1)


def test_a_part_of_the_held_out_items_has_its_own_verdict() -> None:
    report = check([A], [replace(B, id=A.id), replace(B, id="t-9")])
    part = report.among({"t-9"})
    assert (report.verdict, part.verdict, part.held_out) == ("contaminated", "warned", 1)
    assert part.as_dict()["counts"] == {level: int(level == "near") for level in LEVELS}


# By properties

texts = st.text(min_size=1, max_size=60)
items = st.builds(
    Item,
    id=st.sampled_from(["a", "b", "c", "d"]),
    prompt=st.sampled_from(["Cancel it", "cancel  IT!", "Send it", "", "Ａ", "a"]) | texts,
    answers=st.lists(st.sampled_from(["x", "y"]), max_size=1).map(tuple),
    sources=st.frozensets(st.sampled_from(["s", "t", "u", "v"]), max_size=2),
    world=st.sampled_from(["", "{}", "w"]),
)


@given(st.lists(items, max_size=6), st.lists(items, max_size=6))
@settings(max_examples=150)
def test_what_blocks_is_what_comparing_each_with_each_finds(train: list[Item], held_out: list[Item]) -> None:
    def same(one: Item, other: Item) -> bool:
        if one.id == other.id or one.sources & other.sources:
            return True
        if not normalise(one.prompt) or normalise(one.prompt) != normalise(other.prompt):
            return False
        if one.answers and other.answers:
            return bool(set(one.answers) & set(other.answers))
        return bool(one.world) and one.world == other.world

    report = check(train, held_out)
    assert report.blocked == sorted({b.id for b in held_out if any(same(a, b) for a in train)})
    told = {finding.held_out for finding in report.findings if finding.level not in BLOCKING}
    assert told.isdisjoint(report.blocked)


def changed(rng: random.Random, text: str, words: int) -> str:
    parts = text.split()
    for at in rng.sample(range(len(parts)), words):
        parts[at] = rng.choice(WORDS)
    return " ".join(parts)


def overlap(one: str, other: str) -> float:
    """The definition, in three lines."""
    left, right = ({text[at : at + 5] for at in range(len(text) - 4)} for text in (one, other))
    return len(left & right) / len(left | right)


def test_near_duplicates_beside_the_exact_similarity_of_each_with_each() -> None:
    """Nothing is missed and nothing is too much, over pairs of every likeness that matters."""
    rng = random.Random(11)
    train = [spoken(rng, rng.randint(6, 40)) for _ in range(150)]
    held_out = [changed(rng, rng.choice(train), rng.randint(0, 3)) for _ in range(150)]
    found = near_duplicates.nearest(train, held_out, NEAR)
    wanted = 0
    for at, text in enumerate(held_out):
        best = max(overlap(text, other) for other in train)
        wanted += best >= NEAR
        assert found.get(at, (0, None))[1] == (pytest.approx(best) if best >= NEAR else None)
    assert wanted > 40


def test_planted_leaks_are_found_whole_passages_always_and_light_paraphrases_nearly() -> None:
    rng = random.Random(12)
    train = [item(number, spoken(rng, 25), spoken(rng, 3)) for number in range(600)]
    copies = [Item(f"copy-{n}", f" {one.prompt.upper()}.", one.answers) for n, one in enumerate(train[:100])]
    quoted = [
        item(2000 + n, f"{spoken(rng, 40)} {' '.join(one.prompt.split()[3:17])}")
        for n, one in enumerate(train[100:200])
    ]
    light = [item(3000 + n, changed(rng, one.prompt, 1)) for n, one in enumerate(train[200:300])]
    fresh = [item(4000 + n, spoken(rng, 25)) for n in range(300)]
    report = check(train, [*copies, *quoted, *light, *fresh])
    assert report.blocked == sorted(one.id for one in copies)
    flagged = set(report.flagged)
    assert flagged >= {one.id for one in quoted}
    assert len(flagged & {one.id for one in light}) >= 95
    assert not flagged & {one.id for one in fresh}


@pytest.mark.parametrize("way", WAYS)
def test_a_request_of_a_dozen_words_with_its_answer_is_found_however_it_is_written(way: str) -> None:
    rng = random.Random(way)
    asked = [request for request in story.sessions(400, seed=3) if len(request.prompt.split()) >= 8]
    asked = list({request.prompt: request for request in asked}.values())
    held = [item(number, each.prompt, *wanted_of(each.target)) for number, each in enumerate(asked[:150])]
    train = [replace(each, id=f"r{each.id}", prompt=WAYS[way](rng, each.prompt)) for each in held]
    assert len(check(train, held).flagged) >= 0.95 * len(held)
    strangers = [Item(f"s{number}", each.prompt, wanted_of(each.target)) for number, each in enumerate(asked[150:])]
    assert len(check(strangers, held).flagged) <= 0.05 * len(held), "other requests of the same templates"


def test_an_answer_that_many_tasks_have_tells_no_two_requests_apart() -> None:
    answer = '[["calendar.list",{}]]'
    held = [item(n, f"what is on the plan of person {n} for this monday", answer) for n in range(COMMON_ANSWER + 1)]
    row = item(99, "show me, what is on the plan of this person on monday", answer)
    assert check([row], held[:3]).counts["near"] == 3
    assert check([row], held).flagged == []


def test_rows_of_one_conversation_are_read_for_likeness_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, read = random.Random(15), list[int]()
    said = [spoken(rng, 20) for _ in range(6)]
    rows = [Item("line 1", "\n".join(said[: at + 1]), begun=" ".join(said[: at + 1])) for at in range(6)]

    def nearest(train: list[str], *_: Any, **__: Any) -> dict[int, Any]:
        read.append(len(train))
        return {}

    monkeypatch.setattr("flywheel.core.evidence.contamination.near_duplicates.nearest", nearest)
    report = check(rows, [item(1, f"{said[0]}."), item(2, f"{spoken(rng, 9)} {said[2]}")])
    assert {(each.held_out, each.level) for each in report.findings} >= {("t-1", "request"), ("t-2", "passage")}
    assert alike(rows) == []
    assert read == [1, 1]


def test_twenty_thousand_rows_against_five_thousand_tasks_take_seconds() -> None:
    rng = random.Random(13)
    frames = [spoken(rng, 10) for _ in range(40)]
    train = [item(n, f"{frames[n % 40]} {spoken(rng, 3)}", str(n)) for n in range(20_000)]
    held_out = [item(30_000 + n, f"{frames[n % 40]} {spoken(rng, 3)}", str(n)) for n in range(5_000)]
    start = time.process_time()
    report = check(train, held_out)
    assert time.process_time() - start < 40  # about 5 where nothing else runs
    assert report.verdict == "warned"


# Inside one set


def test_duplicates_are_those_that_ask_and_want_the_same_in_the_same_world() -> None:
    again, elsewhere = replace(A, id="t-5", prompt=A.prompt.upper()), replace(A, id="t-6", world="w")
    assert duplicates([A, B, again, elsewhere]) == [(2, 0)]


def test_alike_names_each_pair_once_and_never_the_very_same_request() -> None:
    rng = random.Random(14)
    other = item(3, spoken(rng, 12))
    assert [(pair.one, pair.other) for pair in alike([A, B, other, replace(A, id="t-4")])] == [("t-2", "t-1")]
    assert alike([]) == []


# Items of rows and tasks

CALL = {"tool": "email.send", "arguments": {"to": "Bako", "subject": "lunch"}}
TASK = Task("t-1", "Write to Bako", CALL, {"people": ["Bako"]}, cluster="s-1")
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write to Bako"}]


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "content": call_text("email.send", {"subject": "lunch", "to": "Bako"})},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "email.send", "arguments": '{"subject": "lunch", "to": "Bako"}'},
                }
            ],
        },
    ],
)
def test_a_demonstration_of_a_task_is_the_task_however_its_call_is_written(answer: dict[str, Any]) -> None:
    for row in (
        {"task_id": "t-9", "prompt": ASKED, "completion": [answer]},
        {"task_id": "t-9", "prompt": ASKED, "chosen": [answer], "rejected": [{"role": "assistant", "content": "no"}]},
    ):
        assert levels([item_of_row(row)], [item_of_task(TASK)]) == {"content"}
    assert answer_of([answer]) == wanted_of(CALL)[0]


def test_the_system_prompt_is_nobodys_request() -> None:
    row = {
        "task_id": "t-9",
        "prompt": [ASKED[0] | {"content": spoken(random.Random(1), 20)}, ASKED[1]],
        "completion": [],
    }
    assert item_of_row(row).prompt == "Write to Bako"


def test_tasks_of_other_environments_with_the_same_number_are_others() -> None:
    row = {"id": "t-1", "prompt": "Something else", "target": CALL}
    assert levels([item_of_row(row, place="mail")], [item_of_task(TASK, place="home")]) == set()
    assert levels([item_of_row(row, place="mail")], [item_of_task(TASK, place="mail")]) == {"task"}


def test_generated_tasks_of_other_seeds_block_by_what_they_share_alone() -> None:
    """Games have one wording and no written answer, and office tasks come of templates: neither blocks by wording."""
    for generate in (tictactoe.generate, request_templates.generate):
        train = [item_of_task(replace(task, cluster=f"a {task.cluster}"), place="a") for task in generate(60, seed=1)]
        held_out = [
            item_of_task(replace(task, cluster=f"b {task.cluster}"), place="b") for task in generate(60, seed=2)
        ]
        report = check(train, held_out)
        assert report.counts["task"] == report.counts["source"] == 0
        same = [finding for finding in report.findings if finding.level == "content"]
        assert all(finding.asked == finding.trained or finding.shared for finding in same)


def test_a_row_that_begins_in_a_run_is_compared_with_its_whole_beginning() -> None:
    begun = [
        Message("user", "Meet Bako"),
        Message("assistant", "", (ToolCall("c", "find", {"who": "Bako"}),)),
        Message("tool", "two of them", (), "c"),
    ]
    target = {"wanted": [{"type": "question", "text": "Which Bako?"}]}
    task = Task("t-1", "Meet Bako", target, {"messages": [message.to_json() for message in begun]})
    row: dict[str, Any] = {"task_id": "t-9", "completion": [{"role": "assistant", "content": "which Bako?"}]}
    whole = [Message("system", "Be kind."), *begun]
    same = item_of_row(row | {"prompt": [message.to_openai() for message in whole]})
    assert levels([same], [item_of_task(task)]) == {"content"}
    earlier = item_of_row(row | {"prompt": [begun[0].to_openai()]})
    assert not levels([earlier], [item_of_task(task)]) & {"content", "request"}


@pytest.mark.parametrize("form", LABELS)
def test_a_beginning_is_the_same_in_whatever_form_it_calls(form: str) -> None:
    call = Message("assistant", "", (ToolCall("c", "send", {"to": "Ann"}),))
    begun = [Message("user", "Send it."), call, Message("tool", "sent", (), "c", "send")]
    written = [call_forms.write(message, form) if message.role == "assistant" else message for message in begun]
    assert asked_in(written) == asked_in(begun)


def test_a_passage_of_what_a_user_says_later_in_a_task_is_found() -> None:
    said = "please move it to the big blue room on the third floor and tell everybody who comes about it"
    state = {"turns": [{"say": said, "after": "Where?", "calls": []}]}
    held_out = item_of_task(Task("h-1", "Move it", {"wanted": []}, state))
    row = {"task_id": "t-1", "prompt": [{"role": "user", "content": f"Hello, {said}"}], "completion": []}
    assert levels([item_of_row(row)], [held_out]) == {"passage"}
    assert levels([item_of_task(Task("t-2", "Meet me", {"wanted": []}, state))], [held_out]) == {"passage"}
    tables = item_of_task(Task("h-2", "Move it", {"wanted": []}, {"turns": "x", "script": [3, {"say": 4}]}))
    assert levels([item_of_row(row)], [tables]) == set()


@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_training_items_in_parts_show_what_they_show_at_once(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    rng = random.Random(at_once)
    held_out = [item(number, spoken(rng, 25), f"do {number}") for number in range(30)]
    train = [item(100 + number, spoken(rng, 25), "else") for number in range(40)]
    for number, task in enumerate(held_out[:24]):
        words = task.prompt.split()
        train += [
            replace(task, id=f"copy-{number}", answers=(), sources=frozenset()),
            item(200 + number, " ".join([*words[:20], *spoken(rng, 5).split()]), "another"),
            item(300 + number, task.prompt, *(task.answers if number % 3 else ("other",))),
            replace(item(400 + number, spoken(rng, 9)), sources=task.sources if number % 5 == 0 else frozenset()),
        ][number % 2 : 4 - number % 3]
    rng.shuffle(train)
    whole = check(train, held_out)
    assert {finding.level for finding in whole.findings} >= {"source", "content", "request", "passage"}
    monkeypatch.setattr(contamination, "AT_ONCE", at_once)
    assert check(iter(train), held_out) == whole


def test_wording_is_common_however_many_parts_it_comes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination, "AT_ONCE", 3)
    rng = random.Random(1)
    same = spoken(rng, 14)
    held_out = [item(1, f"{same} {spoken(rng, 40)}")]
    train = [item(10 + number, f"{spoken(rng, 40)} {same}") for number in range(COMMON + 1)]
    assert [finding.level for finding in check(train[1:], held_out).findings] == ["passage"]
    assert check(train, held_out).findings == []


def test_rows_of_a_conversation_are_compared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination, "AT_ONCE", 1)
    asked = "Cancel my first meeting with Bako on December 13"
    rows = [item(1, asked[:-1]), item(1, f"{asked[:-1]}\nand then write to everybody who was to come that I am ill")]
    assert "near" not in levels([*rows, item(2, "Hello")], [item(9, asked)])


def test_only_a_part_of_the_training_items_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination, "AT_ONCE", 10)
    alive: set[int] = set()
    rng = random.Random(1)
    held_out = [item(500 + number, spoken(rng, 14)) for number in range(10)]
    most = 0

    def items() -> Iterator[Item]:
        nonlocal most
        for number in range(100):
            made = item(number, f"Number {number} is asked. {held_out[number % len(held_out)].prompt}")
            weakref.finalize(key := _Key(), alive.discard, number)
            object.__setattr__(made, "sources", _Watched(made.sources, key))
            alive.add(number)
            most = max(most, len(alive))
            yield made

    assert {finding.level for finding in check(items(), held_out).findings} == {"passage", "near"}
    assert most < 30


class _Key:
    """What goes when the item goes."""


class _Watched(frozenset[str]):
    """Sources that hold a key."""

    key: _Key

    def __new__(cls, sources: frozenset[str], key: _Key) -> "_Watched":
        made = super().__new__(cls, sources)
        made.key = key
        return made


# Whatever a row says

MOVED = {"tool": "calendar.update", "arguments": {"id": "0012", "day": "friday"}}
REQUEST = "Move the review with Priya to friday and tell nobody else about it"
HELD_OUT = item_of_task(Task("t-1", REQUEST, {"calls": [MOVED]}, cluster="s-1"))
WRITTEN = call_text(MOVED["tool"], MOVED["arguments"])  # type: ignore[arg-type]


def row_of(asked: str, *answers: dict[str, Any], system: str = "Be kind.", **more: Any) -> dict[str, Any]:
    prompt = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
    return {"task_id": "t-9", "prompt": prompt, "completion": list(answers), **more}


def native(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return Message("assistant", "", (ToolCall("c", tool, arguments),)).to_openai()


RIGHT = native(MOVED["tool"], MOVED["arguments"])  # type: ignore[arg-type]
SEARCH = [native("calendar.search", {"query": "Priya"}), {"role": "tool", "tool_call_id": "c", "content": "0012"}]


@pytest.mark.parametrize(
    "row",
    [
        row_of(REQUEST, RIGHT),
        row_of(REQUEST, *SEARCH, RIGHT, {"role": "assistant", "content": "Done."}),
        row_of(REQUEST, {"role": "assistant", "content": f"```json\n{WRITTEN}\n```"}),
        row_of(REQUEST, {"role": "assistant", "content": f"Sure! {WRITTEN}"}),
        row_of(REQUEST.replace("review", "“review”"), RIGHT),
        row_of(f"A colleague asks: {REQUEST}. Please do that now.", RIGHT),
        row_of("Hello", {"role": "assistant", "content": "Hi"}, system=f"An example. {REQUEST}\n{WRITTEN}"),
        row_of("Hello", RIGHT, system=f"Once somebody asked: {REQUEST}"),
        {**row_of("Hello"), "chosen": [], "rejected": [{"role": "user", "content": REQUEST}, RIGHT]},
    ],
)
def test_a_request_with_its_right_calls_blocks_wherever_they_stand(row: dict[str, Any]) -> None:
    report = check([item_of_row(row)], [HELD_OUT])
    assert (report.blocked, report.verdict) == ([HELD_OUT.id], "contaminated")


@pytest.mark.parametrize(
    "row",
    [
        row_of("Hello", {"role": "assistant", "content": f"I was once asked: {REQUEST}"}),
        row_of("Hello", *SEARCH[:1], {"role": "tool", "tool_call_id": "c", "content": f"Mail: {REQUEST}"}),
        row_of("Hello", system=f"People ask things such as: {REQUEST}"),
        row_of(REQUEST, native(MOVED["tool"], {"id": "0012", "day": "monday"})),  # type: ignore[arg-type]
    ],
)
def test_a_request_without_its_answer_warns_wherever_it_stands(row: dict[str, Any]) -> None:
    report = check([item_of_row(row)], [HELD_OUT])
    assert (report.flagged, report.verdict) == ([HELD_OUT.id], "warned")


def test_other_calls_of_the_same_template_block_nothing() -> None:
    other = REQUEST.replace("Priya", "Bako").replace("friday", "monday")
    row = row_of(other, native(MOVED["tool"], {"id": "0013", "day": "monday"}))  # type: ignore[arg-type]
    assert check([item_of_row(row)], [HELD_OUT]).blocked == []


def test_a_versions_prompt_is_compared_too() -> None:
    shown = item_of_prompt("agent@2", f"You are an assistant.\n\nUser: {REQUEST}\nYou: {WRITTEN}")
    assert check([shown], [HELD_OUT]).blocked == [HELD_OUT.id]
    told = item_of_prompt("agent@2", "You are an assistant.", [{"name": "find", "description": f"As in: {REQUEST}"}])
    assert check([told], [HELD_OUT]).verdict == "warned"
    assert check([item_of_prompt("agent@2", "You are an assistant.")], [HELD_OUT]).verdict == "clean"
