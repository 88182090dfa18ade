"""Previews of tokens by API."""

from collections.abc import Callable

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import State
from flywheel.training.datasets.dataset_builder import build
from flywheel.training.models import TokenPreview
from tests.training.conftest import Room
from tests.training.pages.launching.test_token_previews import MADE

pytestmark = pytest.mark.django_db
ADDRESS = "/api/v1/token-previews"


def test_a_preview_is_asked_for_once_and_read_when_it_is_ready(
    room: Room, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    build(name="rows", kind="sft", task_set=room.task_set, actor=Actor(room.cast.trainer), version=room.base)
    headers = key("read", "train")
    sent = {"base": str(room.base), "dataset": "rows@1"}
    first = client.post(ADDRESS, sent, content_type="application/json", headers=headers)
    assert (first.status_code, first.json()["preview"], first.json()["state"]) == (202, None, "queued")
    assert client.post(ADDRESS, sent, content_type="application/json", headers=headers).status_code == 200
    TokenPreview.objects.update(state=State.SUCCEEDED, result=MADE)
    found = client.get(f"{ADDRESS}/{first.json()['id']}", headers=headers).json()
    assert found["preview"] == MADE
    named = {**sent, "algorithm": "sft", "settings": {"max_length": 512}}
    assert client.post(ADDRESS, named, content_type="application/json", headers=headers).status_code == 202
    unknown = client.post(ADDRESS, {**sent, "algorithm": "magic"}, content_type="application/json", headers=headers)
    assert (unknown.status_code, "'sft', 'dpo'" in unknown.json()["detail"][0]["msg"]) == (422, True)
    refused = client.post(ADDRESS, {**sent, "dataset": ""}, content_type="application/json", headers=headers)
    assert refused.status_code == 404
