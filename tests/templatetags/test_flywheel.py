"""What the filters and tags write, and that nothing an agent wrote gets through as more than text."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.http import QueryDict
from django.template import engines
from django.test import RequestFactory

from flywheel.core.evidence.statistics.estimates import Estimate
from flywheel.core.text import number_words
from flywheel.core.text.glossary import TERMS
from flywheel.templatetags import flywheel as tags
from flywheel.templatetags import numbers, texts

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def render(source: str, **context: Any) -> str:
    return engines["django"].from_string(source).render(context)


def plain(text: str) -> str:
    return text.replace(numbers.GAP, " ").replace(numbers.THIN, " ")


def test_a_share_is_written_one_way_in_numbers_and_in_sentences() -> None:
    """`64%`, never `64 %`."""
    assert [number_words.percent(0.642), number_words.percent(0.642, 1), number_words.percent(1.0)] == [
        "64%",
        "64.2%",
        "100%",
    ]
    assert numbers.percent(0.642) == number_words.percent(0.642, 1)
    sources = [path for room in ("flywheel", "templates", "docs") for path in (ROOT / room).rglob("*.*")]
    texts = {path: path.read_text() for path in sources if path.suffix in (".py", ".html", ".md")}
    assert not [
        path for path, text in texts.items() if re.search(r"[\dgf]\}?(?: |&nbsp;|\u00a0)%(?=[\"'`.,;:)<]|$)", text)
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 ms"),
        (340, "340 ms"),
        (999.4, "999 ms"),
        (999.6, "1.0 s"),
        (4_240, "4.2 s"),
        (9_960, "10 s"),
        (59_600, "1 m 00 s"),
        (72_000, "1 m 12 s"),
        (7_500_000, "2 h 05 m"),
        (273_600_000, "3 d 4 h"),
        (-340, "−340 ms"),
        (timedelta(seconds=72), "1 m 12 s"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_duration(value: Any, expected: str) -> None:
    assert plain(numbers.duration(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (812, "812"),
        (999.6, "1.0 k"),
        (12_400, "12.4 k"),
        (999_960, "1.0 M"),
        (1_240_000, "1.2 M"),
        (3e9, "3.0 G"),
        (-1_200, "−1.2 k"),
        (None, "–"),
    ],
)
def test_tokens(value: Any, expected: str) -> None:
    assert plain(numbers.tokens(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "$0"),
        (0.00001, "<$0.0001"),
        (0.0031, "$0.0031"),
        (0.42, "$0.42"),
        (4.2, "$4.20"),
        (1240, "$1 240"),
        (-0.5, "−$0.50"),
        (None, "–"),
    ],
)
def test_money(value: Any, expected: str) -> None:
    assert plain(numbers.money(value)) == expected


@pytest.mark.parametrize(("value", "expected"), [(812, "812 B"), (1_400, "1.4 kB"), (1.4e9, "1.4 GB"), (None, "–")])
def test_size(value: Any, expected: str) -> None:
    assert plain(numbers.size(value)) == expected


def test_shares_and_differences() -> None:
    assert plain(numbers.percent(0.642)) == "64.2%"
    assert plain(numbers.percent(0.642, 0)) == "64%"
    assert plain(numbers.points(0.184)) == "+18.4 points"
    assert numbers.points(-0.03, "short") == "−3.0"
    assert numbers.points(0.0001, "short") == "0.0", "a zero has no sign"
    assert numbers.points(-0.0001, "short") == "0.0"
    assert numbers.signed(0.31) == "+0.31"
    assert numbers.number(-2, 1) == "−2.0"
    assert plain(numbers.count(5210)) == "5 210"
    assert numbers.percent(None) == numbers.points("x") == numbers.count(None) == "–"


@dataclass
class Result:
    mean: float | None
    low: float | None
    high: float | None
    n: int
    unscored: int = 0


def test_an_estimate_shows_its_interval_and_n() -> None:
    html = plain(render("{% estimate e %}", e=Result(0.642, 0.611, 0.673, 1240))).replace("&nbsp;", " ")
    assert "<b>64.2%</b>" in html
    assert "±3.1 (n 1 240)" in html
    assert "95% interval: 61.1% to 67.3%" in html


def test_an_interval_that_would_leave_0_to_100_is_shown_itself() -> None:
    def margin(mean: float, low: float, high: float) -> str:
        return numbers.estimate_margin(Result(mean, low, high, 30))

    assert margin(0.892, 0.722, 0.974) == "[72.2, 97.4]"
    assert margin(1.0, 0.876, 1.0) == "[87.6, 100.0]"
    assert margin(0.0, 0.0, 0.124) == "[0.0, 12.4]"
    assert margin(0.433, 0.25, 0.61) == "±18.0"


def test_an_estimate_of_the_core_and_a_dict_look_the_same() -> None:
    core = Estimate(mean=0.5, low=0.4, high=0.6, n=40, unscored=2, clusters=33, method="bootstrap")
    html = render("{% estimate e %}", e=core)
    assert "2 not scored" in html
    assert "bootstrap" in html
    same = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 40, "unscored": 2, "method": "bootstrap"}
    assert render("{% estimate e %}", e=same) == html
    assert render('{% include "_estimate.html" with estimate=e %}', e=core) == html


def test_what_was_not_scored_is_never_zero() -> None:
    html = render("{% estimate e %}", e=Result(None, None, None, 0, unscored=3))
    assert "–" in html
    assert "not scored: 3 without a score" in html
    assert "0" not in html
    assert 'title="not measured yet"' in render("{% estimate e %}", e=None)


def test_an_estimate_in_other_units() -> None:
    html = plain(render('{% estimate e "duration" %}', e=Result(1240, 1100, 1400, 8)))
    assert "1.2 s" in html
    assert "±150 ms" in html


def test_a_difference_says_in_words_whether_it_is_better() -> None:
    better = plain(render('{% difference e better="high" %}', e=Result(0.184, 0.091, 0.276, 40)))
    assert "+18.4 points" in better
    assert "[+9.1, +27.6]" in better
    assert "better" in better
    cheaper = render('{% difference e "percent" better="low" %}', e=Result(-0.03, -0.05, -0.01, 40))
    assert "▼" in cheaper
    assert "better" in cheaper
    assert "worse" in render('{% difference e better="high" %}', e=Result(-0.1, -0.2, -0.05, 40))
    assert "not shown" in render('{% difference e better="high" %}', e=Result(0.01, -0.02, 0.04, 40))


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (NOW - timedelta(seconds=10), "just now"),
        (NOW + timedelta(seconds=10), "in a moment"),
        (NOW - timedelta(minutes=2), "2 min ago"),
        (NOW + timedelta(minutes=5), "in 5 min"),
        (NOW - timedelta(hours=3), "3 h ago"),
        (NOW - timedelta(days=4), "4 d ago"),
        (NOW - timedelta(days=90), "4 Dec 2025"),
    ],
)
def test_relative_times(moment: datetime, expected: str) -> None:
    assert plain(tags.relative(moment, NOW)) == expected


def test_ago_carries_the_exact_time() -> None:
    html = render("{{ t|ago }}", t=NOW)
    assert 'datetime="2026-03-04T12:00:00+00:00"' in html
    assert 'title="2026-03-04 12:00:00 UTC"' in html
    assert "2026-03-04" in tags.ago(date(2026, 3, 4))
    assert tags.ago(None) == "–"


def test_outcomes_have_a_mark_and_a_word() -> None:
    for outcome, mark in (("success", "✓"), ("failed", "✕"), ("", "–"), (None, "–")):
        html = render("{% mark_outcome o %}", o=outcome)
        assert mark in html
        assert (outcome or "unknown") in html
    assert "not shown" in render('{% state "not_shown" %}')
    assert "&lt;b&gt;" in render("{% state s %}", s="<b>")


HOSTILE = "\x1b[31mred\x1b[0m\x1b]8;;http://evil\x07 a\u202eb\u200bc \x00 <script>alert(1)</script> \U000e0041"


def test_hostile_text_is_shown_for_what_it_is() -> None:
    text = texts.safe_text(HOSTILE)
    assert text == "red a⟨U+202E⟩b⟨U+200B⟩c ␀ <script>alert(1)</script> ⟨U+E0041⟩"
    html = render("{{ t|safe_text }}", t=HOSTILE)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert texts.safe_text("two\nlines\tand 👍️") == "two\nlines\tand 👍️"
    assert texts.safe_text(None) == ""


def test_no_hidden_character_escapes_the_quick_look() -> None:
    for point in range(0x110000):
        character = chr(point)
        for text in (character, f"a{character}", f"\u00e9{character}"):
            assert texts.safe_text(text) == texts._ANSI.sub("", text).translate(texts._VISIBLE)


@pytest.mark.parametrize(
    "source",
    [
        "{{ t|safe_text }}",
        "{{ t|pretty }}",
        "{{ d|pretty }}",
        "{% diff t 'x' %}",
        "{% diff 'x' t %}",
        "{% diff d t %}",
        "{% chart spec %}",
        "{% sparkline v t %}",
        "{% bar 1 2 t t %}",
        "{% mark_outcome t %}",
        "{% state t t %}",
        "{% estimate e %}",
        "{% difference e %}",
        '{% include "_lineage.html" %}',
        "{% empty_state t command=t action=t action_url=t %}{{ t }}{% endempty_state %}",
    ],
)
def test_no_tag_lets_markup_through(source: str) -> None:
    hostile = "\"'><img src=x onerror=alert(1)></pre></script>"
    html = render(
        source,
        t=hostile,
        d={hostile: [hostile]},
        v=[1, 2],
        e={"mean": None, "cause": hostile},
        spec={
            "kind": "bar",
            "title": hostile,
            "note": hostile,
            "series": [{"name": hostile, "x": [hostile], "y": [1]}],
        },
        lineage=[{"label": hostile, "url": "/x"}, {"label": hostile, "current": True}],
    )
    assert "<img" not in html
    assert "</script" not in html
    assert "'><" not in html


def test_pretty_reads_json_text_and_leaves_other_text() -> None:
    assert texts.pretty('{"a":1}') == '{\n  "a": 1\n}'
    assert texts.pretty("not json {") == "not json {"
    deep = "[" * 5000
    assert texts.pretty(deep) == deep
    assert texts.pretty({"é": 1}) == '{\n  "é": 1\n}'
    assert texts.pretty(Result(1, 2, 3, 4)).startswith("{")


def test_diff_marks_what_went_and_what_came() -> None:
    html = render("{% diff a b %}", a={"tool": "send_mail"}, b={"tool": "create_event"})
    assert "<del>send_mail</del>" in html
    assert "<ins>create_event</ins>" in html


def test_diff_of_long_text_stays_cheap() -> None:
    old, new = "a b " * 50_000, "a c " * 50_000
    html = render("{% diff a b %}", a=old, b=new)
    assert html.count("<del>") == html.count("<ins>") == 1


def test_a_chart_carries_its_data_as_text() -> None:
    spec = {"kind": "line", "title": "Reward", "series": [{"name": "<b>", "x": [0], "y": [float("nan")]}]}
    html = render("{% chart spec %}", spec=spec)
    data = html.split("<pre hidden data-spec>")[1].split("</pre>")[0]
    assert json.loads(unescape(data))["series"][0] == {"name": "<b>", "x": [0], "y": [None]}
    assert "<script" not in html, "htmx removes scripts from what it swaps in"


def test_pictures_have_no_inline_style() -> None:
    html = render("{% sparkline v %}{% bar 3 4 %}{% span_bar 1 2 10 'bad' '2 s' %}", v=[1, None, 2])
    assert "style=" not in html
    assert 'width="75.00%"' in html
    assert 'x="10.00%" width="20.00%"' in html
    assert "no data" in render("{% sparkline v %}", v=[None])


def test_query_changes_this_address() -> None:
    request = RequestFactory().get("/", {"q": "a b", "cursor": "9", "tag": ["x", "y"]})

    def address(source: str) -> QueryDict:
        html = engines["django"].from_string(source).render({}, request)
        return QueryDict(unescape(html).removeprefix("?"))

    changed = address("{% query order='-cost' tag=None %}")
    assert changed.dict() == {"q": "a b", "order": "-cost"}
    assert address("{% query cursor=12 %}").getlist("tag") == ["x", "y"]
    assert engines["django"].from_string("{% query q='' tag='' %}").render({}, request) == "?"


@pytest.mark.parametrize("page", ["403.html", "404.html", "500.html"])
def test_error_pages_need_no_context(page: str) -> None:
    html = engines["django"].get_template(page).render()
    assert page[:3] in html
    assert "style=" not in html


def test_a_term_is_shown_with_its_meaning_and_is_reached_by_the_keyboard() -> None:
    page = render('{% term "held-out" %} {% term "rollout" "Rollouts" %}')
    assert '<span class="term" tabindex="0"' in page
    assert f'data-means="{TERMS["rollout"]}">Rollouts</span>' in unescape(page)
    with pytest.raises(KeyError):
        render('{% term "no such term" %}')
