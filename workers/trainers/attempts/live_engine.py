"""The model that is being trained, asked as an engine: for held-out evaluations, and for the attempts that it learns
from, of which it keeps every token."""

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import Message
from workers.engines import context_length, generation
from workers.engines.tool_calls import answer_of, prompt_text, prompt_tokens
from workers.trainers.weights.trained_policy import ends_of

TURN_BITS = 16
"""An episode's seed ends in so many zeros, in which its turns are counted: a request is the next one of the episode
whose seed it has above them."""
_MARK = "what-the-assistant-said"
_ASKED = Message("user", "What is on Friday?")


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer of the policy, and the very tokens in which it was asked and answered; none where it was not asked."""

    response: ChatResponse
    prompt: Sequence[int] = ()
    tokens: Sequence[int] = ()
    """Up to the end of the answer, the token that ends it too."""
    logprobs: Sequence[float] = ()
    """Of each token as it was sampled; none where the sampler is the trained model itself."""
    version: int = 0
    """Of the policy that a server was asked for: the updates behind it."""


class LiveEngine:
    """Asks the model that is being trained without leaving a trace in the training."""

    def __init__(self, model: Any, tokenizer: Any, batch_size: int, top_k: int = 0, *, room: int | None = None) -> None:
        """`room`: tokens that a server takes which has to read them too."""
        self.model, self.tokenizer, self.batch_size, self.top_k = model, tokenizer, batch_size, top_k
        rooms = (context_length.room_of(model), room)
        self._room = min((each for each in rooms if each is not None), default=None)
        self._ends = ends_of(model, tokenizer)

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        return [asked.response for asked in self._ask(requests)]

    def close(self) -> None:
        """Nothing to give back: the model is the trainer's."""

    def _ask(self, requests: Sequence[ChatRequest]) -> list[Asked]:
        found = [self._prompt(request) for request in requests]
        answers = {index: Asked(it) for index, it in enumerate(found) if isinstance(it, ChatResponse)}
        prompts = {index: it for index, it in enumerate(found) if not isinstance(it, ChatResponse)}
        # Neighbours in length share a batch, so that little is padded.
        order = sorted(prompts, key=lambda index: len(prompts[index]))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            said = self._batch([prompts[index] for index in batch], [requests[index] for index in batch])
            answers |= zip(batch, said, strict=True)
        return [answers[index] for index in range(len(requests))]

    def _prompt(self, request: ChatRequest) -> list[int] | ChatResponse:
        """Its tokens, or why it cannot be asked."""
        try:
            ids = self._tokens(request)
        except ValueError as error:
            return ChatResponse(error=str(error))
        if problem := context_length.overflow(len(ids), request.sampling.max_tokens, self._room):
            return ChatResponse(error=problem, is_too_long=True)
        return ids

    def _tokens(self, request: ChatRequest) -> list[int]:
        return prompt_tokens(self.tokenizer, [message.to_openai() for message in request.messages], request.tools)

    def _batch(self, prompts: Sequence[list[int]], requests: Sequence[ChatRequest]) -> list[Asked]:
        began = time.perf_counter()
        asked = [replace(request, seed=folded(request.seed)) for request in requests]
        with undisturbed(self.model), torch.no_grad():
            drawn = generation.draw(
                self.model,
                prompts,
                asked,
                ends=self._ends,
                pad=self.tokenizer.pad_token_id,
                top_k=self.top_k,
                past=self._past(requests),
            )
        elapsed_ms = (time.perf_counter() - began) * 1000
        return [
            self._answered(prompt, each.tokens, (), request, elapsed_ms)
            for prompt, each, request in zip(prompts, drawn, requests, strict=True)
        ]

    def _past(self, requests: Sequence[ChatRequest]) -> generation.Past | None:
        """The tokens of these conversations that the model has read already."""
        return None

    def _answered(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        logprobs: Sequence[float],
        request: ChatRequest,
        elapsed_ms: float,
    ) -> Asked:
        answer = answer_of(self.tokenizer, prompt, tokens, self._ends, elapsed_ms, request.tools)
        return Asked(answer, prompt, tokens[: answer.tokens_out], logprobs[: answer.tokens_out])


def folded(seed: int) -> int:
    """A seed of 32 bits, of which each depends on the whole: torch's generator reads no more than those."""
    return (seed ^ seed >> 32) & 0xFFFFFFFF


@dataclass(slots=True)
class Episode:
    """A conversation in tokens: what opened it, and what came then."""

    prompt: list[int]
    completion: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 where the policy wrote the token, 0 where a template, a tool or a user did."""
    logprobs: list[float] = field(default_factory=list)
    """Of the completion's tokens as they were sampled, 0 where the policy wrote none; empty where nobody said them."""
    versions: list[int] = field(default_factory=list)
    """The version of the policy that wrote each token of its own, in their order; empty as `logprobs` are."""
    turns: list[int] = field(default_factory=list)
    """Tokens of each answer, in their order."""
    messages: int = 0
    """How many of the conversation's messages are in it."""


class EpisodeEngine(LiveEngine):
    """Keeps the episodes that it is asked in as tokens. What the policy wrote stays as it was sampled, and is never
    made from text again: another way of writing the same text would have another probability.

    Only what comes between two answers is rendered: the end of one, what tools or users said, the start of the next.
    """

    tells_logprobs: ClassVar[bool] = False
    """Whether its episodes have the log-probability of each sampled token."""

    def __init__(self, model: Any, tokenizer: Any, batch_size: int, top_k: int = 0, *, room: int | None = None) -> None:
        super().__init__(model, tokenizer, batch_size, top_k, room=room)
        self._episodes: dict[int, Episode] = {}
        self._read = list[int](), generation.Past()
        """The episodes of the last batch, in its order, and what the model has read of them."""

    def begin(self) -> None:
        """Forget the episodes so far."""
        self._episodes.clear()

    def episode(self, seed: int) -> Episode:
        """Return the episode of this seed, which has ended; where nothing could be asked, one token that nobody
        wrote."""
        self._read = [], generation.Past()  # its memory is wanted for learning
        found = self._episodes.get(seed >> TURN_BITS)
        if found is not None and found.completion:
            return found
        nothing = [self._ends[0]]
        return Episode(found.prompt if found else nothing, nothing, [0], [0.0])

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        answers = self._ask(requests)
        for request, asked in zip(requests, answers, strict=True):
            if asked.prompt:
                self._keep(request, asked)
        return [asked.response for asked in answers]

    def _past(self, requests: Sequence[ChatRequest]) -> generation.Past | None:
        """Those of the last batch, where these go on with it: seldom, with more episodes than fit into a batch."""
        asked = [request.seed >> TURN_BITS for request in requests]
        known, past = self._read
        at = {episode: row for row, episode in enumerate(known)}
        if past.can_go_on and set(asked) <= set(known):
            past.select([at[episode] for episode in asked])
        else:
            past = generation.Past()
        self._read = asked, past
        return past

    def _keep(self, request: ChatRequest, asked: Asked) -> None:
        known = self._episodes.setdefault(request.seed >> TURN_BITS, Episode(list(asked.prompt)))
        between = asked.prompt[len(known.prompt) + len(known.completion) :]
        known.completion += [*between, *asked.tokens]
        known.mask += [0] * len(between) + [1] * len(asked.tokens)
        known.turns.append(len(asked.tokens))
        if asked.logprobs:
            known.logprobs += [*[0.0] * len(between), *asked.logprobs]
            known.versions += [asked.version] * len(asked.tokens)
        known.messages = len(request.messages) + 1

    def _tokens(self, request: ChatRequest) -> list[int]:
        known = self._episodes.get(request.seed >> TURN_BITS)
        if known is None:
            return super()._tokens(request)
        answer, *new = request.messages[known.messages - 1 :]
        ended = known.completion[-1] if known.completion[-1] in self._ends else None
        between = between_answers(self.tokenizer, answer, new, request.tools, self._ends, ended)
        return [*known.prompt, *known.completion, *between]


def between_answers(
    tokenizer: Any,
    answer: Message,
    new: Sequence[Message],
    tools: Sequence[Any],
    ends: Sequence[int],
    ended: int | None,
) -> list[int]:
    """Return the tokens between an answer and the next one: what the template puts after the answer, the new messages,
    and what it puts before an answer. `ended`: the token in which the policy ended the answer; None where it was cut.

    They are cut out of a short conversation, since some templates write the answers before the last in another way.
    Raises ValueError for a template that does not only append.
    """
    said = Message("assistant", _MARK, answer.tool_calls)

    def render(messages: Sequence[Message], *, is_asked: bool) -> str:
        return prompt_text(tokenizer, [message.to_openai() for message in messages], tools, is_asked=is_asked)

    closed = render([_ASKED, said], is_asked=False)
    whole = render([_ASKED, said, *new], is_asked=True)
    is_marked = _MARK in closed and _MARK in whole
    if is_marked:
        closed, whole = closed.partition(_MARK)[2], whole.partition(_MARK)[2]
    marks = [str(tokenizer.decode([end])) for end in ends]
    closed = _continued(closed, whole, marks)
    end = max((mark for mark in marks if mark in closed), key=closed.rfind, default="")
    # A turn may end in a mark that is none of the model's own ends; behind a call nobody knows where it begins.
    after = closed[closed.rfind(end) :] if end else closed if is_marked and not answer.tool_calls else ""
    text = after + whole[len(closed) :]
    if ended is not None:  # the policy has written the end itself
        text = text.removeprefix(end or str(tokenizer.decode([ended])))
    # Behind an end, since some tokenizers write the beginning of a text in another way.
    lead = str(tokenizer.decode([ends[0] if ended is None else ended]))
    ids: list[int] = tokenizer.encode(lead + text, add_special_tokens=False)
    return ids[len(tokenizer.encode(lead, add_special_tokens=False)) :]


def _continued(closed: str, whole: str, marks: Sequence[str]) -> str:
    """Return what ends an answer in a conversation that goes on: some templates write one end more where it does not.
    Raises ValueError for a template that writes the answer itself in another way."""
    if whole.startswith(closed):
        return closed
    for mark in marks:
        shorter = closed.removesuffix(mark)
        if shorter != closed and whole.startswith(shorter) and any(other in shorter for other in marks):
            return shorter
    raise ValueError(
        "the model's chat template writes an answer anew when the conversation goes on, so that no episode can be "
        "continued"
    )


@contextlib.contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Evaluation mode, then train mode and every random state exactly as they were."""
    training = model.training
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    model.eval()
    try:
        yield
    finally:
        model.train(training)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
