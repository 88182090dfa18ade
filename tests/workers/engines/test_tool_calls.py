"""Calls are read back out of what each chat template writes, and what nobody reads is an error instead of words."""

from pathlib import Path
from typing import Any

import pytest
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from flywheel.core.traces import ToolCall
from workers.engines.tool_calls import answer_of, templated

TEMPLATES = {path.stem: path for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja")}
CALLING = sorted(
    name for name, path in TEMPLATES.items() if "tools" in path.read_text() and not name.endswith("_training")
)
"""Templates, as models have them, that tell of tools."""
NOT_READ = {"diffusion_gemma", "lfm2", "muse_glimmer"}
"""The first LFM2 writes no calls at all; of the other two TRL has no response template."""
END = 0
TOOL = {
    "name": "look_up",
    "description": "Look a day up.",
    "parameters": {
        "type": "object",
        "properties": {"day": {"type": "string"}, "count": {"type": "integer"}, "code": {"type": "string"}},
        "required": ["day"],
    },
}
ARGUMENTS = {"day": "friday", "count": 7, "code": "7"}
CALL = {"id": "call00000", "type": "function", "function": {"name": "look_up", "arguments": ARGUMENTS}}
ASKED = [{"role": "system", "content": "You help."}, {"role": "user", "content": "What is on friday?"}]


def tokenizer_with(template: str) -> Any:
    """A tokenizer of bytes: whatever a template writes has tokens."""
    alphabet = ["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    of_bytes = Tokenizer(models.BPE(vocab={text: at for at, text in enumerate(alphabet)}, merges=[]))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    of_bytes.decoder = decoders.ByteLevel()
    made: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=of_bytes, eos_token="</s>", bos_token="</s>"
    )
    made.chat_template = template
    return templated(made)


def answered(tokenizer: Any, message: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The prompt's tokens, and those of the answer as training would have them: the whole conversation's rest."""
    asked = tokenizer.apply_chat_template(ASKED, tools=[TOOL], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template([*ASKED, message], tools=[TOOL], tokenize=False)
    same = 0
    while same < min(len(asked), len(whole)) and asked[same] == whole[same]:
        same += 1  # some templates leave an empty thought out of what was said before
    return tokenizer.encode(whole[:same]), [*tokenizer.encode(whole[same:]), END]


@pytest.mark.parametrize("name", [name for name in CALLING if name not in NOT_READ])
def test_what_a_template_writes_is_read_back(name: str) -> None:
    tokenizer = tokenizer_with(TEMPLATES[name].read_text())
    prompt, tokens = answered(tokenizer, {"role": "assistant", "content": "", "tool_calls": [CALL]})
    answer = answer_of(tokenizer, prompt, tokens, {END}, 1.0, [TOOL])
    assert (answer.error, answer.finish_reason) == ("", "stop")
    assert answer.tool_calls == (ToolCall("call-0", "look_up", ARGUMENTS),), "with the types of the tool's schema"
    assert "look_up" not in answer.text


def test_settings_of_the_template_reach_it_whoever_asks() -> None:
    tokenizer = tokenizer_with(TEMPLATES["qwen3"].read_text())
    asked = [{"role": "user", "content": "Hi"}]
    plain = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    quiet = templated(tokenizer, {"enable_thinking": False})
    assert not plain.endswith("</think>\n\n")
    assert quiet.apply_chat_template(asked, tokenize=False, add_generation_prompt=True).endswith("</think>\n\n")


def test_enough_templates_are_read() -> None:
    assert len(set(CALLING) - NOT_READ) >= 23


@pytest.mark.parametrize("name", [name for name in CALLING if name not in NOT_READ])
def test_words_are_words(name: str) -> None:
    tokenizer = tokenizer_with(TEMPLATES[name].read_text())
    prompt, tokens = answered(tokenizer, {"role": "assistant", "content": "Nothing is on friday."})
    answer = answer_of(tokenizer, prompt, tokens, {END}, 1.0, [TOOL])
    assert (answer.text.strip(), answer.tool_calls, answer.error) == ("Nothing is on friday.", (), "")


UNKNOWN = """{%- for message in messages -%}[{{ message.role }}]{{ message.content }}
{%- for call in message.tool_calls or [] -%}<<calls>>{{ call.function.name }}({{ call.function.arguments | tojson }})
{%- endfor -%}{%- endfor -%}{%- if tools %}{% endif -%}{%- if add_generation_prompt -%}[assistant]{%- endif -%}"""


def test_a_call_that_nobody_reads_is_an_error_and_words_are_not() -> None:
    tokenizer = tokenizer_with(UNKNOWN)
    prompt, tokens = answered(tokenizer, {"role": "assistant", "content": "", "tool_calls": [CALL]})
    answer = answer_of(tokenizer, prompt, tokens, {END}, 1.0, [TOOL])
    assert answer.error == "a tool call cannot be read: nobody here knows the chat template that writes '<<calls>>'"
    prompt, tokens = answered(tokenizer, {"role": "assistant", "content": "Nothing."})
    assert answer_of(tokenizer, prompt, tokens, {END}, 1.0, [TOOL]).error == ""


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "look_up", "arguments": {"day": ',
        '{"look_up": {"day": "friday"}}',
        '{"name": "look_up", "arguments": 7}',
        '{"name": {"look_up": 1}, "arguments": {}}',
        '{"arguments": {"day": "look_up"}}',
        '["look_up"]',
    ],
)
def test_a_broken_call_is_what_the_model_wrote_and_no_error(call: str) -> None:
    tokenizer = tokenizer_with(TEMPLATES["qwen3"].read_text())
    prompt, _ = answered(tokenizer, {"role": "assistant", "content": "x"})
    broken = f"<tool_call>\n{call}\n</tool_call>"
    answer = answer_of(tokenizer, prompt, [*tokenizer.encode(broken), END], {END}, 1.0, [TOOL])
    assert (answer.tool_calls, answer.error) == ((), "")
    assert "look_up" in answer.text


def test_an_answer_that_was_cut_off_says_so() -> None:
    tokenizer = tokenizer_with(UNKNOWN)
    prompt, tokens = answered(tokenizer, {"role": "assistant", "content": "Nothing."})
    assert answer_of(tokenizer, prompt, tokens[:3], {END}, 1.0).finish_reason == "length"
