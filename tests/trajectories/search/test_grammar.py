"""How a query is written, read and written again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.trajectories.search import grammar
from flywheel.trajectories.search.grammar import And, Node, Not, Or, Term, Unreadable, Value, Words, parse, show


def is_(field: str, *values: str) -> Term:
    return Term(field, tuple(Value(value) for value in values))


A, B, C = Words("a"), Words("b"), Words("c")


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("", And()),
        ("a b", And((A, B))),
        ("a and b AND c", And((A, B, C))),
        ("a or b", Or((A, B))),
        ("a OR b oR c", Or((A, B, C))),
        ("a b or c", Or((And((A, B)), C))),
        ("a (b or c)", And((A, Or((B, C))))),
        ("a (b (c))", And((A, B, C))),
        ("-a", Not(A)),
        ("not a b", And((Not(A), B))),
        ("NOT (a or b)", Not(Or((A, B)))),
        ("-(a b)", Not(And((A, B)))),
        ("--a", Not(Not(A))),
        ("a - b", And((A, Words("-"), B))),
        ('"or" "a  b"', And((Words("or", True), Words("a  b", True)))),
        ('"say ""yes"""', Words('say "yes"', True)),
        ('"never closed', Words("never closed", True)),
        ("order android nothing", And((Words("order"), Words("android"), Words("nothing")))),
        ("env:dev", is_("env", "dev")),
        ("(env:dev or env:test) a", And((Or((is_("env", "dev"), is_("env", "test"))), A))),
        ("-env:dev,test", Not(is_("env", "dev", "test"))),
        ('tool:"a,b",c', Term("tool", (Value("a,b", True), Value("c")))),
        ("outcome:(failed OR unknown)", is_("outcome", "failed", "unknown")),
        ('agent:(mail agent or "x (y)", z)', Term("agent", (Value("mail agent"), Value("x (y)", True), Value("z")))),
        ("latency:(>2 or <1)", is_("latency", ">2", "<1")),
        ("meta.region:eu", Term("meta", (Value("eu"),), "region")),
        ('meta."a ""b""":eu', Term("meta", (Value("eu"),), 'a "b"')),
        ("tool:", Term("tool", ())),
        ("(tool:calendar.get(x))", is_("tool", "calendar.get(x)")),
        ("https://example.org/x 12:30", And((Words("https://example.org/x"), Words("12:30")))),
        ('5" f(x) :)', And((Words('5"'), Words("f(x)"), Words(":)")))),
    ],
)
def test_it_is_read(text: str, node: Node) -> None:
    assert parse(text).node == node


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(a or b", "never closed"),
        ("a) )", "closes nothing"),
        ("(a or b)) c", "closes nothing"),
        ("()", "Nothing is in"),
        ("a or", "none after it"),
        ("or a", "none before it"),
        ("a or or b", "none after it"),
        ("a or and b", "none before it"),
        ("a and", "none after it"),
        ("and a", "none before it"),
        ("not", "Nothing comes after"),
        ("not or a", "Nothing comes after"),
        ("tool:(a", "never closed"),
        ("tool:(a(b))", "never closed"),
        ("tool:x,(b)", "in quotes"),
        ("(" * 30 + "a" + ")" * 30, "inside each other"),
        ("-" * 3000 + "a", "inside each other"),
        ("a " * 101, "more than 100 terms"),
        ("a" * 4001, "at most 4000"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, told: str) -> None:
    with pytest.raises(Unreadable, match=told):
        parse(text)


def test_the_parts_at_the_top_are_known_as_they_were_written() -> None:
    assert parse('a and -(b or c)  env:dev "x y"').parts == ("a", "-(b or c)", "env:dev", '"x y"')
    assert parse("a b or c ").parts == ("a b or c",)


@pytest.mark.parametrize(
    ("value", "written"),
    [("email.send", "f:email.send"), ("a,b", 'f:"a,b"'), ("x*", 'f:"x*"'), (">2", 'f:">2"'), ('"', 'f:""""')],
)
def test_a_term_for_a_value_finds_just_this_value(value: str, written: str) -> None:
    assert grammar.term("f", value) == written
    found = parse(written).node
    assert isinstance(found, Term)
    assert [each.text for each in found.values] == [value]


_plain = st.sampled_from(["a", "b*", ">=2", "1..2", "x.y-z", "é", "orb", "-1", "<b>", "it's", "a:b", "%_\\"])
_any = st.text(max_size=6)
_values = st.lists(st.builds(Value, _plain) | st.builds(Value, _any, st.just(True)), max_size=3).map(tuple)
_leaves: st.SearchStrategy[Node] = st.one_of(
    st.builds(Words, st.sampled_from(["a", "f(x)", "12:30", "-", "orb"])),
    st.builds(Words, _any, st.just(True)),
    st.builds(Term, st.sampled_from(["env", "tool", "has"]), _values),
    st.builds(Term, st.just("meta"), _values, st.text(min_size=1, max_size=5)),
)


def _grown(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    def of(kind: type[And] | type[Or]) -> st.SearchStrategy[Node]:
        inner = parts.filter(lambda part: not isinstance(part, kind))
        return st.lists(inner, min_size=2, max_size=3).map(lambda found: kind(tuple(found)))

    return st.one_of(st.builds(Not, parts), of(And), of(Or))


NODES = st.recursive(_leaves, _grown, max_leaves=8)


@given(node=NODES)
@settings(max_examples=400)
def test_a_query_that_is_written_reads_as_the_same(node: Node) -> None:
    assert parse(show(node)).node == node


@given(
    pieces=st.lists(
        st.sampled_from(["a", "or", "and", "not", "env:", "meta.x:", "(", ")", '"', ",", "-", " ", " ", ">1", "*", "é"])
    )
)
@settings(max_examples=600)
def test_whatever_is_read_can_be_written_again(pieces: list[str]) -> None:
    try:
        node = parse("".join(pieces)).node
    except Unreadable:
        return
    assert parse(show(node)).node == node
