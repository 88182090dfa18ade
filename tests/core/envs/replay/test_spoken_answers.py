"""Words are judged by their facts and most of their content, refusals and questions by what they do."""

import pytest

from flywheel.core.envs.replay.spoken_answers import READ, exact, number, problem, question, refusal, words

RIGHT = 'I moved "Board meeting" (id 00000256) to 2023-12-01 and told bako@atlas.com; it takes 1,500 seconds.'


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        (RIGHT.upper(), True),
        ("Moved 00000256, Board meeting, to 2023-12-01, told bako@atlas.com: takes 1500 seconds.", True),
        (RIGHT.replace("00000256", "00000255"), False),
        (RIGHT.replace("2023-12-01", "2023-12-02"), False),
        (RIGHT.replace("bako@", "ines@"), False),
        (RIGHT.replace("Board meeting", "Board lunch"), False),
        (RIGHT.replace("moved", "have not moved"), False),
        ("00000256 2023-12-01 bako@atlas.com Board meeting 1500", False),
    ],
)
def test_every_fact_and_most_words_must_be_there(answer: str, passes: bool) -> None:
    found = words(answer, RIGHT)
    assert (found.score == 1.0) is passes, found
    assert passes or found.score < 0.5


def test_json_is_compared_as_json() -> None:
    assert words('{"b": [1], "a": "x"}', '{"a": "x", "b": [1]}').score == 1.0
    assert words('{"a": "y", "b": [1]}', '{"a": "x", "b": [1]}').score == 0.0
    assert words("a is x and b is 1", '{"a": "x", "b": [1]}').score == 0.0


def test_exactly_or_by_the_last_number() -> None:
    assert exact(" New  York\n", "New York").score == 1.0
    assert [exact(text, "New York").score for text in ("new york", "New York!", "It is New York")] == [0.0] * 3
    for text in ("No, 3 + 69 is 72.", "72", "the total is $72.00", "1,072 - 1,000 = 72"):
        assert number(text, "72").score == 1.0, text
    assert "its last number is 71" in number("72, or rather 71", "72").reason
    assert "no number" in number("seventy-two", "72").reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("  ", "says nothing"),
        ("Done.<|im_end|>", "markers"),
        ('The expected result is {"wanted": []}', "braces"),
        ("which  one?", "repeats"),
    ],
)
def test_what_is_no_answer_to_a_person(text: str, reason: str) -> None:
    assert reason in problem(text, "Done.", ["Which one?"])
    assert problem("Which one?", "Which one?", ["Which one?"]) == ""


def test_refusals_and_questions_are_told_by_what_they_do() -> None:
    for text in ("I can’t do that.", "I'm not able to.", "I am unable to", "I must decline.", "I won't delete it"):
        assert refusal(text, "").score == 1.0, text
    assert refusal("Gladly!", "").score == 0.0
    assert refusal("No.", "No.").score == 1.0
    assert question("Which Bako?", "").score == 1.0
    assert question("¿Cuál? 哪个？", "").score == 1.0
    assert question("Done.", "").score == 0.0


def test_long_hostile_texts_are_read_in_time() -> None:
    for piece in ("a", "a-", "1,", '"', "a@", "not ", "{"):
        long = piece * (2 * READ)
        words(long, long + "x")
        problem(long, "", [])
