"""Log-probabilities of what was drawn, beside a model that reads the whole answer at once."""

from pathlib import Path

import pytest
import torch
from django.conf import settings

from flywheel.core.envs.policy_rollouts import ChatRequest, Sampling
from flywheel.core.traces import Message
from workers.engines.transformers_engine import TransformersEngine


def asked(text: str, temperature: float, top_p: float = 1.0, *, tells_tokens: bool = True) -> ChatRequest:
    return ChatRequest((Message("user", text),), Sampling(temperature, top_p, 24), 7, (), tells_tokens)


def test_each_tokens_log_probability_is_that_of_the_distribution_it_was_drawn_from() -> None:
    """Of answers of several lengths and settings in one batch; wanting them changes no answer."""
    engine = TransformersEngine(Path(settings.REFERENCE_POLICY))
    requests = [asked("Meet Bako on friday", 1.0), asked("Hi", 0.7), asked("Mail Ada", 1.3, 0.8), asked("Who?", 2.0)]
    answers = engine.chat(requests)
    plain = engine.chat(
        [
            asked(it.messages[0].content, it.sampling.temperature, it.sampling.top_p, tells_tokens=False)
            for it in requests
        ]
    )
    assert [answer.text for answer in answers] == [answer.text for answer in plain]
    assert not any(answer.logprobs or answer.token_ids for answer in plain)
    for request, answer in zip(requests, answers, strict=True):
        assert len(answer.logprobs) == len(answer.token_ids) == answer.tokens_out
        assert list(answer.logprobs) == pytest.approx(_slowly(engine, request, answer.token_ids), abs=1e-5)
    assert min(map(min, (answer.logprobs for answer in answers))) < -0.1


def _slowly(engine: TransformersEngine, request: ChatRequest, tokens: tuple[int, ...]) -> list[float]:
    """One forward pass a token, without a cache, in 64 bits from the logits on."""
    ids, found = engine._encode(request), []
    for token in tokens:
        with torch.inference_mode():
            logits = engine._model(input_ids=torch.tensor([ids])).logits[0, -1].double()
        probabilities = torch.softmax(logits / request.sampling.temperature, dim=-1)
        best = probabilities.sort(descending=True)
        inside = best.indices[best.values.cumsum(0) - best.values < request.sampling.top_p]
        found.append(float((probabilities[token] / probabilities[inside].sum()).log()))
        ids.append(token)
    return found
