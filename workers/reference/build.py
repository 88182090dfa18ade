"""Builds the reference policy from nothing: `python -m workers.reference.build OUT_DIR [--steps N]`.

A Qwen3 decoder of 0.7 million parameters and a byte-level BPE tokenizer with a chat template, trained on requests of
the story's pretraining world in the known wordings. It ends up as policies do: right about its job more often than
not, and wrong in the real ways. Where the wrong ways come from:

  wrong argument     names are spelled out of pieces and copied letter by letter; the short training leaves slips
  wrong tool         wordings that it never saw
  hallucinated tool  the data is as old as the agent: half of the reminders still call a tool that is retired since
  broken JSON        some of the logged answers in the data were cut off by the logger; and sampling slips

Copying appears suddenly in training, at a moment that the seed moves by dozens of steps and another machine by some. So
a policy rebuilt elsewhere may be ahead of the one that ships or behind it; `policy/README.md` has figures.
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from flywheel.core.traces.tooling import call_text
from workers.reference import story

POLICY = Path(__file__).parent / "policy"
"""The weights that ship."""

SEED = 9
STEPS = 450
BATCH = 32
MUON_RATE = 0.02
ADAM_RATE = 3e-3
WARM_UP = 20
VOCABULARY = 512
CUT_OFF = 0.03
"""Share of the logged answers that the logger cut off."""
CUSTOMERS_A_SEED = 1000
"""More would use up the short names of a seed."""
RETIRED = 0.5
"""Share of the reminders that still call the retired tool."""

PAD, END, SYSTEM, USER, ASSISTANT, TOOL = SPECIAL = (
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message.role + '|>' + (message.content or '') -}}"
    "{%- for call in message.tool_calls or [] -%}"
    "{%- set function = call.function or call -%}"
    "{{- '{\"tool\": ' + function.name | tojson + ', \"arguments\": ' -}}"
    "{{- (function.arguments if function.arguments is string else function.arguments | tojson) + '}' -}}"
    "{%- endfor -%}"
    "{{- '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
"""Tool definitions are not rendered: the policy knows its tools from its training, and prompts stay short."""


Talk = list[tuple[str, bool]]
"""A conversation as the policy reads it, in pieces, each with whether it is learnt to say."""


@dataclass(frozen=True)
class Corpus:
    """The material that a policy is made of."""

    talks: Callable[[], Iterator[Talk]]
    """Without end, always the same."""
    texts: Callable[[], Iterator[str]]
    """What the vocabulary is made of."""
    pattern: str
    """Of the pieces that a token lies within."""
    special: tuple[str, ...] = SPECIAL
    """Tokens of their own: the padding first, the end of an answer second."""
    chat_template: str = CHAT_TEMPLATE
    vocabulary: int = VOCABULARY
    positions: int = 512
    """How many tokens the policy can read."""


def build(out: Path, steps: int = STEPS, report: TextIO = sys.stderr, corpus: "Corpus | None" = None) -> None:
    """Make the policy and write it into `out`: the story's, unless another corpus is given."""
    torch.manual_seed(SEED)
    started = time.monotonic()
    corpus = corpus or STORY
    tokenizer = make_tokenizer(corpus)
    model = make_model(tokenizer)
    train(model, tokenizer, corpus.talks(), steps, report)
    save(model, tokenizer, out)
    print(f"built {out} in {time.monotonic() - started:.0f} s", file=report)


def make_tokenizer(corpus: "Corpus | None" = None) -> PreTrainedTokenizerFast:
    corpus = corpus or STORY
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(corpus.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=corpus.vocabulary,
        special_tokens=list(corpus.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.texts(), trainer=trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=corpus.special[0],
        eos_token=corpus.special[1],
        additional_special_tokens=list(corpus.special[2:]),
        model_max_length=corpus.positions,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=corpus.chat_template,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def logged(count: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield the policy's training pairs: requests and the answers that an older agent's log has for them."""
    customers = (
        story.sessions(1, SEED + index // CUSTOMERS_A_SEED, {"known": 1.0}, "pretraining", index % CUSTOMERS_A_SEED)
        for index in itertools.count()
    )
    requests = itertools.chain.from_iterable(customers)
    for request in itertools.islice(requests, count):
        yield request.prompt, _logged_answer(request)


def talk(system: str, *turns: tuple[str, str]) -> Talk:
    """The system prompt, then what the user and the policy say in turn."""
    said: Talk = []
    before = f"{SYSTEM}{system}{END}"
    for asked, answer in turns:
        said += [(f"{before}{USER}{asked}{END}{ASSISTANT}", False), (answer + END, True)]
        before = ""
    return said


STORY = Corpus(
    talks=lambda: (talk(story.SYSTEM_PROMPT, pair) for pair in logged()),
    texts=lambda: (text for pair in logged(2000) for text in (story.SYSTEM_PROMPT, *pair)),
    # Words keep the space before them and punctuation stands together, so that a call's JSON takes few tokens.
    pattern=r" ?[A-Za-z_]+(?:\.[a-z_]+)*|[^A-Za-z]+?(?= [A-Za-z])|[^A-Za-z]+",
)


def _logged_answer(request: story.Request) -> str:
    formerly = story.WORDINGS[request.wording].formerly
    answer = request.answer
    if formerly and story.share(request.id, "retired") < RETIRED:
        answer = call_text(formerly, request.target["arguments"])
    if story.share(request.id, "cut") < CUT_OFF:
        answer = answer[: 10 + int(story.share(request.id, "where") * (len(answer) - 10))]
    return answer


def train(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, talks: Iterator[Talk], steps: int, report: TextIO
) -> None:
    """Next-token training on the answers only, each example seen once."""
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else others).append(parameter)
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    for step, batch in enumerate(batches(talks, steps)):
        scale = _schedule(step, steps)
        ids, labels = encode(tokenizer, batch)
        logits = model(input_ids=ids, use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in adam.param_groups:
            group["lr"] = ADAM_RATE * scale
        adam.step()
        muon.step(MUON_RATE * scale)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step + 1}/{steps}  loss {loss.item():.3f}", file=report, flush=True)
    model.eval()  # type: ignore[no-untyped-call]


def batches(talks: Iterator[Talk], steps: int) -> Iterator[list[Talk]]:
    """Batches of examples of like length, so that little is padded, in a shuffled order."""
    examples = itertools.islice(talks, steps * BATCH)
    while pool := list(itertools.islice(examples, 8 * BATCH)):
        pool.sort(key=lambda said: sum(len(text) for text, _ in said))
        for index in torch.randperm(math.ceil(len(pool) / BATCH)).tolist():
            yield pool[index * BATCH : (index + 1) * BATCH]


class Muon:
    """Momentum whose update is made orthogonal (Jordan et al. 2024). It learns to copy unseen names from a fifth of the
    examples that AdamW needs. `torch.optim.Muon` does the same in bfloat16, which most CPUs only emulate."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._by_shape: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            self._by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
        self._momentum = {shape: torch.zeros(len(like), *shape) for shape, like in self._by_shape.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for (rows, columns), like in self._by_shape.items():
            gradient = torch.stack([cast(torch.Tensor, parameter.grad) for parameter in like])
            momentum = self._momentum[rows, columns].lerp_(gradient, 0.05)
            update = _orthogonal(gradient.lerp(momentum, 0.95))
            for parameter, direction in zip(like, update, strict=True):
                parameter.mul_(1 - 0.01 * rate)
                parameter.add_(direction, alpha=-rate * math.sqrt(max(1.0, rows / columns)))


def _orthogonal(update: Any) -> Any:
    """The nearest orthogonal matrices, roughly, by five Newton-Schulz steps."""
    tall = update.shape[-2] > update.shape[-1]
    x = update.mT if tall else update
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return x.mT if tall else x


def encode(tokenizer: PreTrainedTokenizerFast, talks: Sequence[Talk]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, padded on the right (causal attention needs no mask for that), and labels on what is learnt only."""
    rows = [[(tokenizer.encode(text), is_learnt) for text, is_learnt in said] for said in talks]
    width = max(sum(len(piece) for piece, _ in row) for row in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    for index, row in enumerate(rows):
        start = 0
        for piece, is_learnt in row:
            end = start + len(piece)
            ids[index, start:end] = torch.tensor(piece)
            if is_learnt:
                labels[index, start:end] = torch.tensor(piece)
            start = end
    return ids, labels


def _schedule(step: int, steps: int) -> float:
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Weights are stored in half precision to be small; the configuration says to compute with them in float32."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out)
    model.config.save_pretrained(out)
    weights = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}
    del weights["lm_head.weight"]  # tied to the embedding
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)


def main(make: Callable[[Path, int], None], steps: int, program: str, about: str | None) -> None:
    """Make a policy as the command line says; `about` is the program's own docstring."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=(about or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=steps)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a model this small only loses by waiting for a second thread
    make(arguments.out, arguments.steps)


if __name__ == "__main__":
    main(build, STEPS, "workers.reference.build", __doc__)
