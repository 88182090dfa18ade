"""Splits as the writer in promotions makes and moves them."""

from datetime import timedelta
from typing import Any

from django.db.models import F, Func
from django.utils import timezone

from flywheel.agents.models import Split, Version
from flywheel.agents.splits import open_splits
from flywheel.agents.splits.open_splits import OpenSplit
from tests.conftest import Build


def split_of(live: Version, candidate: Version, **more: Any) -> Split:
    lease = timezone.now() + timedelta(seconds=open_splits.LEASE_S)
    fields = {"share": 5000, "salt": "salt", "lease_until": lease, **more}
    return Split.objects.create(agent=live.agent, live=live, candidate=candidate, **fields)


def split_at(build: Build, url: str, **more: Any) -> Split:
    """The same between two versions that this server answers for, whose models are called after their arms."""
    here = {"kind": "openai", "base_url": url}
    live = build.version(endpoint={**here, "model": "live"})
    candidate = build.version(endpoint={**here, "model": "candidate"}, system_prompt="Another")
    live.agent.live = live
    live.agent.save()
    return split_of(live, candidate, **more)


def opened(split: Split) -> OpenSplit:
    found = open_splits.find(split.agent)
    assert found is not None
    return found


def renew(split: Split) -> None:
    """As the judge does, by the clock of the database."""
    now = Func(function="clock_timestamp")
    Split.objects.filter(pk=split.pk).update(lease_until=now + timedelta(seconds=open_splits.LEASE_S))


def shift(split: Split, by: timedelta) -> None:
    """The database's clock jumps back by so much: what it wrote lies later than what it says now."""
    Split.objects.filter(pk=split.pk).update(lease_until=F("lease_until") + by)
