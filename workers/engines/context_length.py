"""Whether a conversation and the answer asked for fit into a model's context."""

from typing import Any


class TooLong(str):
    """Why a conversation has no score: it is longer than the model takes."""


def room_of(model: Any) -> int | None:
    """Count the tokens that a model of transformers takes in all; None where its configuration does not say."""
    room: int | None = getattr(model.config, "max_position_embeddings", None)
    return room


def overflow(tokens: int, answer: int, room: int | None) -> str:
    """Why a conversation of so many tokens and an answer of at most so many do not fit; empty where they do."""
    if room is None or tokens + answer <= room:
        return ""
    return f"the conversation has {tokens} tokens and asks for {answer} more; the model takes {room} in all"
