"""Answers are told token by token, in whole characters, and nothing that is told is taken back."""

from typing import Any

import pytest

from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Sampling
from flywheel.core.traces import Message
from tests.workers.engines.test_tool_calls import TEMPLATES, tokenizer_with
from workers.engines.streamed_answers import Call, Heard, StreamedAnswer
from workers.engines.transformers_engine import TransformersEngine
from workers.reference.build import POLICY

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def call(key: int = 1, *stop: str, max_tokens: int = 64, seed: int = 1) -> Call:
    messages = (Message("user", "Meet Bako on friday."),)
    return Call(key, ChatRequest(messages, Sampling(1.0, 1.0, max_tokens), seed), stop, is_streamed=True)


def pieces(template: str, text: str, *stop: str, content: str | None = None) -> list[str]:
    """What is told of a text whose tokens are its bytes; `content` is what a reader makes of it in the end."""
    tokenizer: Any = tokenizer_with(template)
    told: list[Heard] = []
    spoken = StreamedAnswer(tokenizer, call(1, *stop), told.append, ())
    for token in tokenizer.encode(text):
        if spoken.hear(token):
            break
    told_before = [heard.text for heard in told]
    spoken.conclude(ChatResponse(text if content is None else content, finish_reason="length"))
    assert told[-1].answer is not None
    return [*told_before, *([told[-1].text] if told[-1].text else [])]


def test_a_character_is_never_split() -> None:
    assert pieces(PLAIN, "añ€😀b") == ["a", "ñ", "€", "😀", "b"]


def test_what_may_begin_a_stop_text_waits_until_it_does_not() -> None:
    assert pieces(PLAIN, "one\ntwo", "\n\n") == ["o", "n", "e", "\nt", "w", "o"]
    assert pieces(PLAIN, "one\n\ntwo", "\n\n") == ["o", "n", "e"]
    assert pieces(PLAIN, "ab", "b", "never") == ["a"]


@pytest.mark.parametrize("template", ["qwen3", "plain"])
def test_a_call_is_not_told_as_words(template: str) -> None:
    written = TEMPLATES["qwen3"].read_text() if template == "qwen3" else PLAIN
    text = 'Wait.\n<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>'
    assert "".join(pieces(written, text, content="Wait.")).strip() == "Wait."
    assert len(pieces(written, text, content="Wait.")) > 4, "the words before it are told as they come"
    assert "".join(pieces(written, "1 < 2, as [you] know")) == "1 < 2, as [you] know"


def test_what_a_template_may_read_as_a_call_waits_for_the_end() -> None:
    written = TEMPLATES["qwen3"].read_text()
    assert pieces(written, '{"a": 1} is JSON') == ['{"a": 1} is JSON']


def test_each_token_is_told_before_the_next_is_drawn_and_an_end_when_it_comes() -> None:
    engine = TransformersEngine(POLICY, device="cpu")
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    engine._model.register_forward_hook(count)
    told: list[tuple[int, Heard]] = []
    engine.speak([call(1), call(2, max_tokens=3)], lambda heard: told.append((passes, heard)), ())
    ends = {heard.key: (at, heard.answer) for at, heard in told if heard.answer}
    first = next(at for at, heard in told if heard.key == 1)
    assert first <= 2 < 6 < ends[1][0] == passes
    assert ends[2][0] <= 4 < ends[1][0], "the shorter does not wait for the longer"
    for key, (_, answer) in ends.items():
        assert answer is not None
        assert "".join(heard.text for _, heard in told if heard.key == key) == answer.text
    wanted = engine.chat([call(1).request, call(2, max_tokens=3).request])
    assert [(answer.text, answer.tokens_out, answer.finish_reason) for answer in wanted] == [
        (answer.text, answer.tokens_out, answer.finish_reason) for _, answer in (ends[1], ends[2]) if answer
    ]
    engine.close()


def test_nothing_more_is_drawn_for_a_caller_who_is_gone() -> None:
    engine = TransformersEngine(POLICY, device="cpu")
    gone: set[int] = set()
    told: list[Heard] = []

    def tell(heard: Heard) -> None:
        told.append(heard)
        gone.add(1)

    engine.speak([call(1, max_tokens=400), call(2)], tell, gone)
    counts = {heard.key: heard.answer.tokens_out for heard in told if heard.answer}
    assert counts[1] is not None
    assert counts[2] is not None
    assert counts[1] <= 3 < counts[2]
    engine.close()
