"""Tokens drawn from a model of transformers: one way for evals, held-out evaluations and training's own attempts.

Each request draws from its own random numbers, seeded by the request, so that the same request with the same seed gets
the same tokens whatever else is in the batch.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache, GenerationConfig
from transformers.cache_utils import DynamicLayer
from transformers.generation.logits_process import LogitsProcessor
from transformers.generation.stopping_criteria import StoppingCriteria

from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from workers.engines.streamed_answers import StreamedAnswer


class Past:
    """Keys and values of what a model has read and said in a batch of conversations, so that in their next turn it
    reads only what is new."""

    def __init__(self) -> None:
        self.cache: DynamicCache | None = None
        self.seen: torch.Tensor | None = None
        """(rows, columns): 1 where a column is a token of its row, 0 where it is padding."""

    @property
    def can_go_on(self) -> bool:
        """Whether padding between two turns leaves no trace: a window counts it, and a recurrent state has read it."""
        return self.cache is not None and all(type(layer) is DynamicLayer for layer in self.cache.layers)

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows, in this order."""
        assert self.cache is not None
        assert self.seen is not None
        chosen = torch.tensor(rows)
        self.seen = self.seen[chosen]
        self.cache.batch_select_indices(chosen)

    def add(self, mask: torch.Tensor, counts: Sequence[int]) -> None:
        """Take note of a turn: the prompts' columns, and how many of each row's tokens stay in its conversation. The
        last token that was drawn has not been read."""
        assert self.cache is not None
        written = torch.arange(self.cache.get_seq_length() - mask.shape[1]) < torch.tensor(counts)[:, None]
        self.seen = torch.cat([mask, written.to(mask.dtype)], dim=1)


class Drawn(NamedTuple):
    tokens: list[int]
    logprobs: list[float]
    """Of each token in the distribution that it was drawn from, where the request wants them."""


def draw(
    model: Any,
    prompts: Sequence[Sequence[int]],
    requests: Sequence[ChatRequest],
    *,
    ends: Collection[int],
    pad: int,
    top_k: int = 0,
    until: Sequence[StoppingCriteria] = (),
    past: Past | None = None,
) -> list[Drawn]:
    """Return the tokens of each answer, at most as many as its request wants, up to the first of `ends`. `top_k` draws
    from so many tokens alone, and from all when it is 0. With a `past` of the same rows, whose tokens the prompts begin
    with, only what comes after them is read, and the answers become part of it."""
    if past is None or past.cache is None:
        is_shared = _is_shared(prompts)
        past = Past() if past is None and is_shared else past
        if past is not None:
            past.cache = DynamicCache(config=model.config)
            if is_shared and past.can_go_on:
                _read_once(model, prompts, pad, past)
    ids, mask = _columns(prompts, pad, None if past is None else past.seen)
    width = ids.shape[1]
    limits = [request.sampling.max_tokens for request in requests]
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=max(limits),
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        use_cache=True,
        pad_token_id=pad,
        eos_token_id=sorted(ends),
        disable_compile=True,
    )
    device = model.device
    drawing = _Draw(requests, width, device, top_k, keeps=any(request.tells_tokens for request in requests))
    with _generation_config(model, config):
        output = model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            past_key_values=None if past is None else past.cache,
            generation_config=config,
            synced_gpus=False,  # of several processes each asks by itself
            logits_processor=[drawing],
            stopping_criteria=[_Limits(limits, width, device), *until],
        )
    drawn = [_ended(tokens[:limit], ends) for tokens, limit in zip(output[:, width:].tolist(), limits, strict=True)]
    if past is not None and past.can_go_on:
        past.add(mask, [len(tokens) for tokens in drawn])
    kept = torch.stack(drawing.kept, dim=1).tolist() if drawing.kept else [[]] * len(drawn)
    return [
        Drawn(tokens, told[: len(tokens)] if request.tells_tokens else [])
        for tokens, told, request in zip(drawn, kept, requests, strict=True)
    ]


def _is_shared(prompts: Sequence[Sequence[int]]) -> bool:
    """Whether it pays to read each prompt once for all the rows that have it, as the attempts of a group do."""
    distinct = set(map(tuple, prompts))
    return 2 * len(distinct) <= len(prompts) and max(map(len, distinct)) > 1


def _read_once(model: Any, prompts: Sequence[Sequence[int]], pad: int, past: Past) -> None:
    """Have the model read every different prompt, all but its last token, and make that the past of all rows."""
    distinct = {prompt: row for row, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    ids, mask = _columns(list(distinct), pad, None)
    assert past.cache is not None
    config = GenerationConfig(max_new_tokens=1, do_sample=False, pad_token_id=pad, disable_compile=True)  # type: ignore[no-untyped-call]
    with _generation_config(model, config):
        model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            past_key_values=past.cache,
            generation_config=config,
            synced_gpus=False,
        )
    past.cache.crop(-1)
    past.seen = mask[:, :-1]
    past.select([distinct[tuple(prompt)] for prompt in prompts])


def _columns(
    prompts: Sequence[Sequence[int]], pad: int, seen: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask (rows, columns): first the columns that were seen, whose ids nobody reads any more, then what is new
    in each prompt, padded on the left."""
    known = torch.zeros((len(prompts), 0), dtype=torch.long) if seen is None else seen
    new = [prompt[count:] for prompt, count in zip(prompts, known.sum(1).tolist(), strict=True)]
    width = known.shape[1] + max(map(len, new))
    ids = torch.full((len(prompts), width), pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    mask[:, : known.shape[1]] = known
    for row, tokens in enumerate(new):
        ids[row, width - len(tokens) :] = torch.tensor(tokens)
        mask[row, width - len(tokens) :] = 1
    return ids, mask


def _ended(tokens: list[int], ends: Collection[int]) -> list[int]:
    return tokens[: next((place for place, token in enumerate(tokens, 1) if token in ends), len(tokens))]


class _Draw(LogitsProcessor):
    """Chooses each row's next token by the row's own sampling settings and random numbers; the rest becomes -inf.

    One uniform number a token, looked up in the cumulated probabilities in the order of the vocabulary, so that a
    rounding difference changes the choice only when the number falls right onto a border.
    """

    def __init__(
        self, requests: Sequence[ChatRequest], width: int, device: torch.device, top_k: int, *, keeps: bool = False
    ) -> None:
        samplings = [request.sampling for request in requests]
        self._width, self._top_k = width, top_k
        self._greedy = torch.tensor([sampling.temperature <= 0 for sampling in samplings], device=device)
        self._is_greedy = all(sampling.temperature <= 0 for sampling in samplings)
        self._temperature = torch.tensor([[sampling.temperature or 1.0] for sampling in samplings], device=device)
        self._top_p = torch.tensor([[sampling.top_p] for sampling in samplings], device=device)
        longest = max(sampling.max_tokens for sampling in samplings)
        # Drawn on the CPU, so that a seed means the same numbers on every device.
        self._uniform = torch.stack([_uniform(request.seed, longest) for request in requests]).to(device)
        self._keeps = keeps
        self.kept: list[torch.Tensor] = []
        """Of each step the log-probabilities (B) of what was drawn; 0 where the best was taken."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        best = scores.argmax(-1)
        if self._keeps and self._is_greedy:
            self.kept.append(torch.zeros(len(best), device=best.device))
        chosen = best if self._is_greedy else torch.where(self._greedy, best, self._drawn(input_ids, scores))
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)

    def _drawn(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = input_ids.shape[1] - self._width
        scores = scores.float()
        if 0 < self._top_k < scores.shape[-1]:
            scores = scores.masked_fill(scores < scores.topk(self._top_k).values[:, -1:], -torch.inf)
        probabilities = _nucleus(torch.softmax(scores / self._temperature, dim=-1), self._top_p)
        cumulated = probabilities.cumsum(-1)
        point = self._uniform[:, step : step + 1] * cumulated[:, -1:]
        drawn = torch.searchsorted(cumulated, point, right=True).clamp_(max=scores.shape[-1] - 1)
        if self._keeps:
            logprobs = (probabilities.gather(1, drawn) / probabilities.sum(-1, keepdim=True)).log().squeeze(-1)
            self.kept.append(torch.where(self._greedy, 0.0, logprobs))
        return drawn.squeeze(-1)


def _uniform(seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.rand(count, generator=generator)


def _nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Probabilities with everything outside the smallest set that reaches `top_p` set to 0."""
    if bool((top_p >= 1).all()):
        return probabilities
    ranked, order = probabilities.sort(-1, descending=True)
    before = ranked.cumsum(-1) - ranked
    keep = torch.zeros_like(probabilities, dtype=torch.bool).scatter_(1, order, (before < top_p) | (top_p >= 1))
    return probabilities * keep


class _Limits(StoppingCriteria):
    """Ends each row at its own `max_tokens`."""

    def __init__(self, limits: Sequence[int], width: int, device: torch.device) -> None:
        self._limits = torch.tensor(limits, device=device) + width

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return self._limits <= input_ids.shape[1]


class Telling(StoppingCriteria):
    """Tells each row's answer the tokens as they are drawn, and ends the rows of which no more is wanted. `read` makes
    an answer of a row's tokens."""

    def __init__(
        self, rows: Sequence[StreamedAnswer], ends: Collection[int], read: Callable[[int, Sequence[int]], ChatResponse]
    ) -> None:
        self._rows, self._ends, self._read = rows, ends, read

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        for row, token in enumerate(input_ids[:, -1].tolist()):
            one = self._rows[row]
            if one.is_over:
                continue
            if token in self._ends:
                one.conclude(self._read(row, [*one.tokens, token]))
            elif one.hear(token) or len(one.tokens) == one.limit:
                one.conclude(self._read(row, one.tokens))
        return torch.tensor([one.is_over for one in self._rows], device=input_ids.device)


@contextlib.contextmanager
def _generation_config(model: Any, config: GenerationConfig) -> Iterator[None]:
    """`generate` fills what looks like a default from the model's own configuration: its penalties must not mix into
    what is asked for."""
    owner = model.get_base_model() if hasattr(model, "get_base_model") else model
    own = owner.generation_config
    owner.generation_config = config
    try:
        yield
    finally:
        owner.generation_config = own
