"""Reward models are listed with what their canaries say."""

from collections.abc import Callable

import pytest
from django.test import Client

from tests.conftest import Build
from tests.environments.versions.test_reward_parts import CANARIES, model

pytestmark = pytest.mark.django_db


def test_they_are_listed_with_their_canaries_and_only_in_their_project(
    build: Build, key: Callable[..., dict[str, str]], client: Client
) -> None:
    model(build)
    model(build, 2, pairs=CANARIES["pairs"] | {"low": 0.4})
    second, first = client.get("/api/v1/reward-models", headers=key("read")).json()["items"]
    assert (first["name"], first["number"], first["digest"], first["problems"]) == (
        "assistant-reward", 1, "1" * 64, [],
    )  # fmt: skip
    assert first["canaries"] == CANARIES
    assert second["problems"] == [
        "it ranks 90.0% of 40 pairs right that it has not seen (40.0% to 98.0%), which may be chance"
    ]
    elsewhere = key("read", project=build.cast.elsewhere, by=build.cast.stranger)
    assert client.get("/api/v1/reward-models", headers=elsewhere).json()["items"] == []
