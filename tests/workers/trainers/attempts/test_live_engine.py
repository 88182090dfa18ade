"""Episodes of the policy under training as tokens: what it wrote stays as it was sampled, what came between is what the
chat template writes there, and each token is known as the policy's or not."""

import contextlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from flywheel.core.envs import Environment, Task, build, tictactoe
from flywheel.core.envs.policy_rollouts import Rollout, Sampling, play
from flywheel.core.traces import Message, ToolCall
from workers.engines import generation
from workers.engines.generation import Drawn
from workers.engines.tool_calls import templated
from workers.trainers.attempts.live_engine import TURN_BITS, Episode, EpisodeEngine

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
SPECIAL = re.compile(
    r"<\|[A-Za-z_]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|<\|turn>|<turn\|>|\[gMASK\]|<sop>|<pad>|<s>|</s>"
)
"""What chat templates mark turns by; what they mark calls and thoughts by is text here."""
TOOL = {
    "name": "look_up",
    "description": "Look a day up.",
    "parameters": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
}
SEED = 3 << TURN_BITS


@dataclass(frozen=True)
class Form:
    """A chat template that TRL ships, and the tokens in which its models end an answer."""

    name: str
    ends: tuple[str, ...]
    calls: bool = True
    """Whether it writes calls and what tools answer."""

    def __str__(self) -> str:
        return self.name

    @property
    def template(self) -> str:
        return (TEMPLATES / f"{self.name}.jinja").read_text()


FORMS = [
    Form("qwen2_5", ("<|im_end|>", "<|endoftext|>")),
    Form("qwen3_instruct_2507", ("<|im_end|>", "<|endoftext|>")),
    Form("qwen3_vl", ("<|im_end|>", "<|endoftext|>")),
    Form("llama3_1", ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")),
    Form("lfm2_v2", ("<|im_end|>",)),
    Form("gemma4_v2", ("<turn|>",)),
    Form("glm4moe", ("<|user|>", "<|observation|>", "<|endoftext|>")),
    Form("llama3", ("<|eot_id|>", "<|end_of_text|>"), calls=False),
    Form("gemma", ("<end_of_turn>",), calls=False),
    Form("gemma3", ("<end_of_turn>",), calls=False),
    Form("cohere", ("<|END_OF_TURN_TOKEN|>",), calls=False),
    Form("lfm2", ("<|im_end|>",), calls=False),
    Form("phi3", ("<|end|>", "<|endoftext|>"), calls=False),
    Form("phi3_5", ("<|end|>", "<|endoftext|>"), calls=False),
]
"""Templates that leave standing what they wrote when the conversation goes on."""
FAMILIES = ("qwen2_5", "llama3_1", "lfm2_v2", "gemma4_v2", "glm4moe")
QWEN = FORMS[0]
CALL = Message("assistant", "", (ToolCall("call-0", "look_up", {"day": "Friday"}),))
TWO_CALLS = Message(
    "assistant",
    "",
    (ToolCall("call-0", "look_up", {"day": "Friday"}), ToolCall("call-1", "look_up", {"day": "Sunday"})),
)
OPENING = [Message("user", "What is on Friday?")]
WORDS = [Message("assistant", "Nothing is on Friday."), Message("assistant", "Quite sure.")]
SURE = [Message("user", "Are you sure?")]
THANKS = [Message("user", "Thanks.")]


def result(place: int, text: str) -> Message:
    return Message("tool", text, tool_call_id=f"call-{place}", name="look_up")


class Talk(NamedTuple):
    """A conversation: what the policy is to answer, and what it is told after each answer but the last."""

    answers: list[Message]
    replies: list[list[Message]]

    @property
    def messages(self) -> list[Message]:
        whole = list(OPENING)
        for answer, reply in zip(self.answers, [*self.replies, []], strict=True):
            whole += [answer, *reply]
        return whole


def talk_of(form: Form) -> Talk:
    """Three answers: a call, words, words; where the template writes no calls, words only."""
    if form.calls:
        return Talk([CALL, *WORDS], [[result(0, "Nothing.")], SURE])
    return Talk([Message("assistant", "I look it up."), *WORDS], [SURE, THANKS])


class Scripted:
    """An environment that says what it is told to, whatever it hears."""

    token_limit = None

    def __init__(self, replies: Sequence[list[Message]], tools: Sequence[dict[str, Any]] = ()) -> None:
        self.replies, self.tools, self.max_turns = replies, list(tools), len(replies) + 1

    def reset(self, task: Task, seed: int) -> list[Message]:
        return list(OPENING)

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        said = sum(message.role == "assistant" for message in messages)
        return self.replies[said - 1] if said <= len(self.replies) else []


class Asking(Scripted):
    """It opens with the task's prompt."""

    def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", task.prompt)]


class Unasked:
    """In place of a model whose tokens are not drawn."""

    def __init__(self, ends: Sequence[int]) -> None:
        self.config = SimpleNamespace(max_position_embeddings=4096)
        self.generation_config = SimpleNamespace(eos_token_id=list(ends))
        self.training = True

    def train(self, training: bool = True) -> None:
        self.training = training

    def eval(self) -> None:
        self.training = False


def tokenizer_of(template: str, ends: Sequence[str], special: Sequence[str] = ()) -> Any:
    """A tokenizer of bytes and of pairs that are frequent in the template, with the template's marks as tokens."""
    marks = sorted({"<pad>", "<s>", *ends, *special, *SPECIAL.findall(template)})
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.train_from_iterator(
        [template, *(message.content for message in [*OPENING, *WORDS, *SURE] for _ in range(3))],
        trainers.BpeTrainer(
            vocab_size=456 + len(marks),
            special_tokens=marks,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    made: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token=ends[0]
    )
    made.chat_template = template
    return templated(made)


def rendered(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] = (), **more: bool) -> str:
    rows = [message.to_openai() for message in messages]
    return str(tokenizer.apply_chat_template(rows, tools=list(tools) or None, tokenize=False, **more))


def plain(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def in_bytes(tokenizer: Any, text: str) -> list[int]:
    """The same text, each byte a token; marks stay what they are."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids: list[int] = []
    at = 0
    for mark in [*SPECIAL.finditer(text), None]:
        between = text[at : mark.start() if mark else len(text)]
        for letters, _ in splitter.pre_tokenize_str(between) if between else []:
            ids += tokenizer.convert_tokens_to_ids(list(letters))
        if mark:
            ids.append(tokenizer.convert_tokens_to_ids(mark.group()))
            at = mark.end()
    return ids


def written(tokenizer: Any, talk: Talk, tools: Sequence[Any], ends: Sequence[str]) -> tuple[list[str], str]:
    """Each answer as the template writes it, up to its end, and the whole conversation to the last one's end."""
    messages, at, answers = talk.messages, 0, []
    whole = rendered(tokenizer, messages, tools)
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        before = rendered(tokenizer, messages[:place], tools, add_generation_prompt=True)
        assert whole.startswith(before), "this template rewrites history, and is no reference"
        after = whole[len(before) :]
        found = min((after.find(end) + len(end) for end in ends if end in after), default=None)
        if found is None:  # what follows ends an answer, and nothing follows the last
            whole, after = whole + ends[0], after + ends[0]
            found = len(after)
        answers.append(after[:found])
        at = len(before) + found
    return answers, whole[:at]


def drawing(monkeypatch: pytest.MonkeyPatch, script: Sequence[Sequence[int]]) -> list[list[int]]:
    """Let the policy of a single episode answer by the script; the prompts that it is asked with."""
    prompts: list[list[int]] = []

    def draw(model: Any, asked: Sequence[Sequence[int]], requests: Sequence[Any], **_: Any) -> list[Drawn]:
        assert len(asked) == 1
        prompts.append(list(asked[0]))
        return [Drawn(list(script[len(prompts) - 1]), [])]

    monkeypatch.setattr(generation, "draw", draw)
    return prompts


def engine_of(tokenizer: Any, ends: Sequence[str]) -> EpisodeEngine:
    return EpisodeEngine(Unasked(tokenizer.convert_tokens_to_ids(list(ends))), tokenizer, 4)


def attempt(seed: int = SEED, task: Task | None = None) -> tuple[Task, int, int]:
    return task or Task("friday", "", {}), 0, seed


def one(engine: EpisodeEngine, env: Any, sampling: Sampling | None = None) -> tuple[Rollout, Episode]:
    (rollout,) = play(engine, env, [attempt()], sampling or Sampling())
    return rollout, engine.episode(SEED)


class Played(NamedTuple):
    tokenizer: Any
    script: list[list[int]]
    reference: str
    rollout: Rollout
    episode: Episode
    prompts: list[list[int]]


Encode = Callable[[Any, str], list[int]]


def played(
    monkeypatch: pytest.MonkeyPatch, form: Form, talk: Talk | None = None, encode: Encode = plain, cut: int = -1
) -> Played:
    """The form's conversation, in which the policy writes what the template would; `cut`: the answer that does not
    come to its end."""
    tokenizer, talk = tokenizer_of(form.template, form.ends), talk or talk_of(form)
    tools = [TOOL] if form.calls else []
    answers, reference = written(tokenizer, talk, tools, form.ends)
    script = [encode(tokenizer, answer) for answer in answers]
    if cut >= 0:
        script[cut] = script[cut][:-1]
    prompts = drawing(monkeypatch, script)
    rollout, episode = one(engine_of(tokenizer, form.ends), Scripted(talk.replies, tools))
    assert rollout.error == ""
    return Played(tokenizer, script, reference, rollout, episode, prompts)


def own(episode: Episode) -> list[int]:
    return [token for token, mark in zip(episode.completion, episode.mask, strict=True) if mark]


def stretches(episode: Episode) -> list[tuple[int, list[int]]]:
    """The completion in pieces that are the policy's or not."""
    pieces: list[tuple[int, list[int]]] = []
    for token, mark in zip(episode.completion, episode.mask, strict=True):
        if not pieces or pieces[-1][0] != mark:
            pieces.append((mark, []))
        pieces[-1][1].append(token)
    return pieces


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_episode_is_the_whole_conversation_as_the_template_writes_it(
    form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = played(monkeypatch, form)
    tokens = it.episode.prompt + it.episode.completion
    assert it.tokenizer.decode(tokens) == it.reference
    assert tokens == plain(it.tokenizer, it.reference)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_policys_are_exactly_the_tokens_that_were_drawn(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    it = played(monkeypatch, form)
    pieces = stretches(it.episode)
    assert [mark for mark, _ in pieces] == [1, 0, 1, 0, 1]
    assert [tokens for mark, tokens in pieces if mark] == it.script
    assert [len(answer) for answer in it.script] == [response.tokens_out for response in it.rollout.responses]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_was_drawn_in_an_unusual_way_stays_as_it_was_drawn(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    it = played(monkeypatch, form, encode=in_bytes)
    assert [tokens for mark, tokens in stretches(it.episode) if mark] == it.script
    assert own(it.episode) != [token for part in it.script for token in plain(it.tokenizer, it.tokenizer.decode(part))]
    assert it.tokenizer.decode(it.episode.prompt + it.episode.completion) == it.reference


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_answer_is_asked_for_with_all_tokens_before_it(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learnt from is what was asked, also where the policy wrote in an unusual way."""
    it = played(monkeypatch, form, encode=in_bytes)
    whole = it.episode.prompt + it.episode.completion
    ends = [len(prompt) + len(answer) for prompt, answer in zip(it.prompts, it.script, strict=True)]
    assert [whole[: len(prompt)] for prompt in it.prompts] == it.prompts
    assert ends[-1] == len(whole)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("cut", [0, 1])
def test_an_answer_that_was_cut_off_is_ended_by_the_template(
    form: Form, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = played(monkeypatch, form, cut=cut)
    assert it.rollout.responses[cut].finish_reason == "length"
    assert own(it.episode) == [token for answer in it.script for token in answer]
    assert it.tokenizer.decode(it.episode.prompt + it.episode.completion) == it.reference, "the end is there, and once"
    between = [tokens for mark, tokens in stretches(it.episode) if not mark][cut]
    assert it.tokenizer.decode(between[:1]) in form.ends


@pytest.mark.parametrize("form", [form for form in FORMS if form.name.startswith("qwen")], ids=str)
def test_several_calls_of_one_answer_and_their_results_are_in_it(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk([TWO_CALLS, WORDS[0]], [[result(0, "Nothing."), result(1, "<|im_end|> Lunch.")]])
    it = played(monkeypatch, form, talk)
    assert it.episode.prompt + it.episode.completion == plain(it.tokenizer, it.reference)
    assert own(it.episode) == [*it.script[0], *it.script[1]]


def test_an_answer_that_ends_in_another_of_the_models_ends_is_not_ended_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = tokenizer_of(QWEN.template, QWEN.ends)
    drawing(monkeypatch, [plain(tokenizer, "Nothing.<|endoftext|>"), plain(tokenizer, "Yes.<|im_end|>")])
    _, episode = one(engine_of(tokenizer, QWEN.ends), Scripted([SURE]))
    assert tokenizer.decode(episode.completion) == (
        "Nothing.<|endoftext|>\n<|im_start|>user\nAre you sure?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>"
    )


def test_a_turns_mark_that_ends_no_answer_of_the_model_is_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Base models have a chat template, and end in another token than the template's."""
    tokenizer = tokenizer_of(QWEN.template, ["<|endoftext|>"])
    drawing(monkeypatch, [plain(tokenizer, "Nothing."), plain(tokenizer, "Yes.<|endoftext|>")])
    _, episode = one(engine_of(tokenizer, ["<|endoftext|>"]), Scripted([SURE]))
    assert tokenizer.decode(episode.completion) == (
        "Nothing.<|im_end|>\n<|im_start|>user\nAre you sure?<|im_end|>\n<|im_start|>assistant\nYes.<|endoftext|>"
    )
    assert own(episode) == [*plain(tokenizer, "Nothing."), *plain(tokenizer, "Yes.<|endoftext|>")]


def test_thoughts_that_a_template_leaves_out_of_earlier_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    form = Form("qwen3", ("<|im_end|>",))
    tokenizer = tokenizer_of(form.template, form.ends)
    answers = [f"<think>\nHm {number}.\n</think>\n\nNothing.<|im_end|>" for number in range(3)]
    script = [in_bytes(tokenizer, answer) for answer in answers]
    drawing(monkeypatch, script)
    rollout, episode = one(engine_of(tokenizer, form.ends), Scripted([SURE, THANKS]))
    assert rollout.error == ""
    assert "<think>" not in rendered(tokenizer, rollout.messages[:-1], add_generation_prompt=True)
    assert [tokens for mark, tokens in stretches(episode) if mark] == script
    users = [
        "<|im_start|>user\n" + text + "<|im_end|>\n" for text in ("What is on Friday?", "Are you sure?", "Thanks.")
    ]
    assert tokenizer.decode(episode.prompt) == users[0] + "<|im_start|>assistant\n"
    assert tokenizer.decode(episode.completion) == "".join(
        [
            *(answers[0], "\n", users[1], "<|im_start|>assistant\n"),
            *(answers[1], "\n", users[2], "<|im_start|>assistant\n", answers[2]),
        ]
    )


def test_a_thought_that_the_template_begins_is_nobodys_word(monkeypatch: pytest.MonkeyPatch) -> None:
    form = Form("deepseekv3", ("<｜end▁of▁sentence｜>",), calls=False)
    tokenizer = tokenizer_of(form.template, form.ends)
    answers = ["Hm.</think>Nothing.<｜end▁of▁sentence｜>", "Yes.</think>Sure.<｜end▁of▁sentence｜>"]
    drawing(monkeypatch, [plain(tokenizer, answer) for answer in answers])
    _, episode = one(engine_of(tokenizer, form.ends), Scripted([SURE]))
    assert tokenizer.decode(episode.prompt) == "<s><｜User｜>What is on Friday?<｜Assistant｜><think>\n"
    assert [(mark, tokenizer.decode(tokens)) for mark, tokens in stretches(episode)] == [
        (1, answers[0]),
        (0, "<｜User｜>Are you sure?<｜Assistant｜><think>\n"),
        (1, answers[1]),
    ]


ONLY_THE_LAST = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and not loop.last %}(left out){% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_an_episode_that_a_template_cannot_continue_is_unscored_and_keeps_what_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = tokenizer_of(ONLY_THE_LAST, ["<|end|>"], ["<|user|>", "<|assistant|>"])
    answer = plain(tokenizer, "Nothing.<|end|>")
    prompts = drawing(monkeypatch, [answer])
    rollout, episode = one(engine_of(tokenizer, ["<|end|>"]), Scripted([SURE]))
    assert rollout.error.startswith("the model's chat template writes an answer anew")
    assert (len(prompts), len(rollout.responses)) == (1, 2)
    assert (episode.prompt, episode.completion, episode.mask) == (prompts[0], answer, [1] * len(answer))


def test_a_template_that_knows_no_tools_refuses_what_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    form = Form("gemma", ("<end_of_turn>",))
    tokenizer = tokenizer_of(form.template, form.ends)
    call = '<tool_call>{"name": "look_up", "arguments": {"day": "Friday"}}</tool_call><end_of_turn>'
    drawing(monkeypatch, [plain(tokenizer, call)])
    rollout, episode = one(engine_of(tokenizer, form.ends), Scripted([[result(0, "Nothing.")]], [TOOL]))
    assert rollout.error == (
        "the model's chat template refuses the conversation: "
        "Conversation roles must alternate user/assistant/user/assistant/..."
    )
    assert own(episode) == episode.completion == plain(tokenizer, call)


ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.mark.parametrize("kind", ["a space is put before the first word", "an end swallows the space behind it"])
def test_what_comes_between_is_written_as_in_the_midst_of_a_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama's tokenizers put a space before a text, and Phi-3's marks swallow the line's end behind them."""
    letters = sorted({*ZEPHYR, *"".join(message.content for message in [*OPENING, *SURE]), "▁", "Y", "s"})
    vocab = {token: at for at, token in enumerate(["<pad>", "<unk>", *letters])}
    chars = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    prepend: Any = "first" if kind.startswith("a space") else "never"
    chars.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    chars.decoder = decoders.Metaspace(prepend_scheme=prepend, split=False)
    swallows = kind.startswith("an end")
    chars.add_special_tokens([AddedToken("</s>", rstrip=swallows, special=True, normalized=False)])
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=chars, pad_token="<pad>", eos_token=AddedToken("</s>", rstrip=swallows, normalized=False)
    )
    tokenizer.chat_template = ZEPHYR
    tokenizer = templated(tokenizer)
    whole = plain(tokenizer, rendered(tokenizer, [*OPENING, Message("assistant", "Yes"), *SURE]))
    end = tokenizer.eos_token_id
    first = [index for index, token in enumerate(whole) if token == end][1] + 1
    prompt = plain(tokenizer, rendered(tokenizer, OPENING, add_generation_prompt=True))
    drawing(monkeypatch, [whole[len(prompt) : first], [vocab["Y"], end]])
    assert whole[: len(prompt)] == prompt
    _, episode = one(engine_of(tokenizer, ["</s>"]), Scripted([SURE]))
    assert (episode.prompt + episode.completion)[: len(whole)] == whole


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A model so small is quickest on one; threads that wait for each other took 20 times as long beside others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return templated(AutoTokenizer.from_pretrained(base))


@pytest.fixture(scope="module")
def model(base: Path) -> Any:
    """The tiny policy with room for whole games. It knows nothing, what it says next depends on what was said, and one
    in some twenty tokens ends its answer."""
    made = AutoModelForCausalLM.from_pretrained(base, max_position_embeddings=4096, dtype=torch.float32)
    made.generation_config.eos_token_id = [AutoTokenizer.from_pretrained(base).eos_token_id, *range(110, 125)]
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" not in name:
                weight.mul_(6)  # as initialised it would say everything with nearly one probability
    return made


GAME = build("tictactoe", {"max_turns": 5, "system_prompt": "Play X."}, {"kind": "tictactoe"})
GAMES = list(tictactoe.generate(4, seed=1))
ATTEMPTS = [(task, number, (10 * number + 1) << TURN_BITS) for number, task in enumerate(GAMES)]
WARM = Sampling(1.0, max_tokens=10)
GREEDY = Sampling(0.0, max_tokens=10)


def episodes(
    model: Any,
    tokenizer: Any,
    attempts: Sequence[tuple[Task, int, int]],
    sampling: Sampling = WARM,
    batch_size: int = 8,
    top_k: int = 0,
    env: Environment = GAME,
) -> list[Episode]:
    engine = EpisodeEngine(model, tokenizer, batch_size, top_k)
    rollouts = play(engine, env, attempts, sampling)
    assert [rollout.error for rollout in rollouts] == [""] * len(attempts)
    return [engine.episode(seed) for _, _, seed in attempts]


def slowly(model: Any, episode: Episode) -> torch.Tensor:
    """Log-probabilities of all tokens at each place of a completion, each by a pass of its own over what is before."""
    tokens, start = episode.prompt + episode.completion, len(episode.prompt)
    with torch.no_grad():
        rows = [
            model(input_ids=torch.tensor([tokens[:at]]), use_cache=False).logits[0, -1]
            for at in range(start, len(tokens))
        ]
    return torch.stack(rows).log_softmax(-1)


def at_once(model: Any, every: Sequence[Episode], pad: int) -> list[torch.Tensor]:
    """Log-probabilities of each completion's tokens as TRL works them out: prompts padded on the left, completions on
    the right, an attention mask, and positions as the model makes them."""
    left, right = max(len(it.prompt) for it in every), max(len(it.completion) for it in every)
    ids = torch.full((len(every), left + right), pad)
    mask = torch.zeros_like(ids)
    for row, it in enumerate(every):
        tokens, start = torch.tensor(it.prompt + it.completion), left - len(it.prompt)
        ids[row, start : start + len(tokens)] = tokens
        mask[row, start : start + len(tokens)] = 1
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, left - 1 : -1]
    found = logits.log_softmax(-1).gather(-1, ids[:, left:, None]).squeeze(-1)
    return [row[: len(it.completion)] for row, it in zip(found, every, strict=True)]


def test_padding_changes_no_log_probability_of_the_policys_tokens(model: Any, tokenizer: Any) -> None:
    talk: Any = Asking([SURE, THANKS])
    tasks = [Task(f"t-{number}", "What is on Friday?" * (3 * number + 1), {}) for number in range(3)]
    asked = [(task, number, (number + 50) << TURN_BITS) for number, task in enumerate(tasks)]
    every = episodes(model, tokenizer, ATTEMPTS) + episodes(model, tokenizer, asked, env=talk)
    assert all(it.mask.count(1) > 10 and 0 in it.mask for it in every)
    assert min(len({len(it.prompt) for it in every}), len({len(it.completion) for it in every})) > 2, "it is padded"
    for it, found in zip(every, at_once(model, every, tokenizer.pad_token_id), strict=True):
        wanted = slowly(model, it).gather(-1, torch.tensor(it.completion)[:, None]).squeeze(-1)
        is_own = torch.tensor(it.mask, dtype=torch.bool)
        assert float(wanted[is_own].std()) > 0.1, "the policy has a mind of its own"
        torch.testing.assert_close(found[is_own], wanted[is_own], atol=1e-4, rtol=0)


@pytest.mark.parametrize("form", [form for form in FORMS if form.name in FAMILIES], ids=str)
def test_a_templates_episodes_have_the_log_probabilities_of_a_pass_for_each_token(
    form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each family's own ids and mask, with a call in it: written as usual, byte by byte, and cut off."""
    ways: list[dict[str, Any]] = [{}, {"encode": in_bytes}, {"cut": 0}]
    tokenizer = tokenizer_of(form.template, form.ends)
    every = [played(monkeypatch, form, **how).episode for how in ways]
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.5,
    )
    policy: Any = Qwen3ForCausalLM(config)
    policy.eval()
    assert len({len(it.completion) for it in every}) > 1, "it is padded"
    for it, found in zip(every, at_once(policy, every, tokenizer.pad_token_id), strict=True):
        wanted = slowly(policy, it).gather(-1, torch.tensor(it.completion)[:, None]).squeeze(-1)
        is_own = torch.tensor(it.mask, dtype=torch.bool)
        assert 0 < int(is_own.sum()) < len(is_own)
        assert float(wanted[is_own].std()) > 0.1, "the policy has a mind of its own"
        torch.testing.assert_close(found[is_own], wanted[is_own], atol=1e-4, rtol=0)


def test_each_token_was_drawn_from_what_stands_before_it(model: Any, tokenizer: Any) -> None:
    """Greedily each is the likeliest one after exactly the episode's tokens: with the others in its batch, their
    padding and a cache it saw nothing else."""
    for it in episodes(model, tokenizer, ATTEMPTS, GREEDY):
        likely = slowly(model, it)
        for place, (token, mark) in enumerate(zip(it.completion, it.mask, strict=True)):
            assert not mark or float(likely[place].max() - likely[place, token]) < 1e-4


def test_an_episode_is_the_same_alone_and_among_others(model: Any, tokenizer: Any) -> None:
    among = episodes(model, tokenizer, ATTEMPTS)
    assert len({tuple(own(it)) for it in among}) == len(ATTEMPTS)
    assert len({it.mask.count(1) for it in among}) > 1, "some end earlier"
    assert episodes(model, tokenizer, ATTEMPTS, batch_size=3) == among
    assert episodes(model, tokenizer, ATTEMPTS[::-1])[::-1] == among
    for asked, it in zip(ATTEMPTS, among, strict=True):
        assert episodes(model, tokenizer, [asked]) == [it]


@contextlib.contextmanager
def reading(model: Any) -> Iterator[list[tuple[int, int]]]:
    """How many rows and columns of tokens each pass within reads."""
    read: list[tuple[int, int]] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, given: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    try:
        yield read
    finally:
        hook.remove()


def test_a_turn_reads_only_what_is_new_in_its_episode(model: Any, tokenizer: Any) -> None:
    """Each token of an episode is read once, but for the last one, whatever turn it was written in."""
    with reading(model) as read:
        (alone,) = episodes(model, tokenizer, ATTEMPTS[:1])
    assert alone.mask[alone.mask.index(1) :].count(0) > 10, "it has several turns"
    assert sum(columns for _, columns in read) == len(alone.prompt) + len(alone.completion) - 1


def test_the_attempts_of_a_group_have_their_task_read_once(model: Any, tokenizer: Any) -> None:
    group = [attempt(SEED + (number << TURN_BITS), GAMES[0]) for number in range(4)]
    alone = [it for one in group for it in episodes(model, tokenizer, [one])]
    assert len({tuple(own(it)) for it in alone}) > 1
    with reading(model) as read:
        assert episodes(model, tokenizer, group) == alone
    assert read[:2] == [(1, len(alone[0].prompt)), (4, 1)]


@pytest.mark.parametrize("batch_size", [2, 8])
def test_what_was_read_of_an_episode_changes_nothing_in_it(
    batch_size: int, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    anew = EpisodeEngine(model, tokenizer, batch_size)
    monkeypatch.setattr(anew, "_past", lambda _: None)
    play(anew, GAME, ATTEMPTS, WARM)
    wanted = [anew.episode(seed) for _, _, seed in ATTEMPTS]
    assert episodes(model, tokenizer, ATTEMPTS, batch_size=batch_size) == wanted


def test_a_model_with_a_window_reads_its_episodes_from_their_beginnings(base: Path, tokenizer: Any) -> None:
    """What a window holds depends on the padding between turns."""
    layers = {"layer_types": ["sliding_attention"] * 2, "num_hidden_layers": 2, "sliding_window": 16}
    config = {"use_sliding_window": True, "max_window_layers": 0, "max_position_embeddings": 4096} | layers
    narrow = AutoModelForCausalLM.from_pretrained(base, **config)
    with reading(narrow) as read:
        (alone,) = episodes(narrow, tokenizer, ATTEMPTS[:1])
    assert sum(columns for _, columns in read) > len(alone.prompt) + len(alone.completion)


@pytest.mark.parametrize("bit", [TURN_BITS, 31, 32, 40, 55])
def test_attempts_of_other_seeds_are_other_attempts(bit: int, model: Any, tokenizer: Any) -> None:
    first, second = episodes(model, tokenizer, [attempt(task=GAMES[0]), attempt(SEED ^ 1 << bit, GAMES[0])])
    assert first.prompt == second.prompt
    assert own(first) != own(second)


def test_an_engine_that_begins_again_plays_the_same_seed_anew(model: Any, tokenizer: Any) -> None:
    engine = EpisodeEngine(model, tokenizer, 8)
    found = []
    for _ in range(2):
        engine.begin()
        play(engine, GAME, ATTEMPTS[:1], WARM)
        found.append(engine.episode(ATTEMPTS[0][2]))
    assert found[0] == found[1]


@pytest.mark.parametrize("is_training", [True, False])
def test_playing_leaves_no_trace_in_the_training(is_training: bool, model: Any, tokenizer: Any) -> None:
    model.train(is_training)
    before = model.generation_config
    python, numpy, pytorch = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    episodes(model, tokenizer, ATTEMPTS[:2])
    assert {module.training for module in model.modules()} == {is_training}
    assert model.generation_config is before
    assert random.getstate() == python
    assert str(np.random.get_state(legacy=False)) == str(numpy)
    assert torch.equal(torch.get_rng_state(), pytorch)
    assert all(weight.grad is None for weight in model.parameters())


def test_playing_that_breaks_leaves_no_trace_either(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(model: Any, *_: Any, **__: Any) -> list[list[int]]:
        assert not model.training
        torch.rand(1)
        raise MemoryError

    monkeypatch.setattr(generation, "draw", draw)
    model.train()
    before = torch.get_rng_state()
    with pytest.raises(MemoryError):
        episodes(model, tokenizer, ATTEMPTS[:1])
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_of_one_token_to_draw_from_the_likeliest_is_drawn(model: Any, tokenizer: Any) -> None:
    greedy = episodes(model, tokenizer, ATTEMPTS, GREEDY)
    assert episodes(model, tokenizer, ATTEMPTS, top_k=1) == greedy
    assert episodes(model, tokenizer, ATTEMPTS) != greedy


def test_an_episode_goes_no_further_than_a_server_reads_that_is_told_of_it(model: Any, tokenizer: Any) -> None:
    def lengths(room: int | None) -> list[int]:
        engine = EpisodeEngine(model, tokenizer, 8, room=room)
        play(engine, GAME, ATTEMPTS, WARM)
        found = [engine.episode(seed) for *_, seed in ATTEMPTS]
        return [len(each.prompt) + len(each.completion) for each in found]

    whole = max(lengths(None))
    assert max(lengths(whole - 1)) < whole


def test_an_episode_that_could_not_begin_is_one_token_that_nobody_wrote(base: Path, tokenizer: Any) -> None:
    """The others are played: TRL wants a completion of each attempt."""
    small = AutoModelForCausalLM.from_pretrained(base)
    engine = EpisodeEngine(small, tokenizer, 4)
    env: Any = Asking([])
    tasks = [Task("long", "remind Ada " * 400, {}), Task("short", "remind Ada", {})]
    long, short = play(engine, env, [(tasks[0], 0, SEED), (tasks[1], 1, SEED + (1 << TURN_BITS))], WARM)
    assert (long.responses[0].is_too_long, short.error) == (True, "")
    assert long.error.endswith("asks for 10 more; the model takes 512 in all")
    nothing = engine.episode(SEED)
    assert (len(nothing.prompt), len(nothing.completion), nothing.mask) == (1, 1, [0])
    assert own(engine.episode(short.seed))


def test_an_episode_that_outgrows_the_context_keeps_what_was_said(base: Path, tokenizer: Any) -> None:
    engine = EpisodeEngine(AutoModelForCausalLM.from_pretrained(base), tokenizer, 4)
    rollout, episode = one(engine, Scripted([[Message("user", "remind Ada " * 400)]]), WARM)
    assert (rollout.error, len(rollout.responses)) == ("", 1)
    assert rollout.ended.endswith("the model takes 512 in all")
    assert episode.mask == [1] * rollout.tokens_out
