"""Details of a model call that training needs: its sampling settings, its token ids and their log-probabilities.

Values are kept as they came, also where they are odd; only what is not a list where a list belongs is left out.
"""

from collections.abc import Mapping
from typing import Any

SETTINGS = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "seed", "stop", "stop_sequences", "n", "logit_bias",
    "logprobs", "top_logprobs", "reasoning", "reasoning_effort", "response_format", "tool_choice",
    "parallel_tool_calls",
)  # fmt: skip


def settings(request: Any) -> dict[str, Any]:
    """The sampling settings among a request's fields."""
    if not isinstance(request, Mapping):
        return {}
    return {key: request[key] for key in SETTINGS if request.get(key) is not None}


def sampling(
    *, prompt: Any = None, tokens: Any = None, logprobs: Any = None, mask: Any = None, params: Any = None
) -> dict[str, Any]:
    """`Step.sampling`, with only what there is."""
    row: dict[str, Any] = {}
    for key, value in (("prompt_token_ids", prompt), ("token_ids", tokens), ("logprobs", logprobs), ("mask", mask)):
        if isinstance(value, list) and value:
            row[key] = value
    if isinstance(params, Mapping) and params:
        row["params"] = dict(params)
    return row


def of_choice(choice: Mapping[str, Any], response: Mapping[str, Any], request: Any = None) -> dict[str, Any]:
    """Return the sampling of a chat completion's choice; token ids are where vLLM puts them."""
    given = choice.get("logprobs")
    return sampling(
        prompt=response.get("prompt_token_ids") or choice.get("prompt_token_ids"),
        tokens=choice.get("token_ids"),
        logprobs=logprobs(given),
        params=settings(request),
    )


def logprobs(given: Any) -> list[Any] | None:
    """The log-probability of each token, out of `{"content": [{"token", "logprob"}]}`, the older completions' form, or
    a plain list."""
    if isinstance(given, Mapping):
        given = given.get("content") or given.get("token_logprobs")
    if not isinstance(given, list):
        return None
    return [item.get("logprob") if isinstance(item, Mapping) else item for item in given]
