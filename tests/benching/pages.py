"""What reviewers open, with parameters that vary: each `Page` answers its addresses, and how fast it is to be."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from html import unescape
from itertools import cycle, islice
from typing import Any
from urllib.parse import urlencode

from django.utils import timezone

from tests.benching import kinds
from tests.benching.filling import Words

LIST_MS, SEARCH_MS, DETAIL_MS, LINEAGE_MS = 50.0, 200.0, 80.0, 100.0
DEEP = 50
"""Pages that are turned before those are measured that are deep."""
_NEXT = re.compile(r'rel="next" href="([^"]*)"')
_SEEN = re.compile(r'name="seen" value="([0-9]+)"')


@dataclass(slots=True)
class Page:
    name: str
    addresses: Iterator[str]
    limit_ms: float | None = None
    """For the 95th percentile; None where nothing was asked for."""
    post: Callable[[str], dict[str, str] | None] = lambda _: None
    """What is sent with an address, where it is no GET."""
    after: Callable[[Any], None] = lambda _: None
    """Gets each answer, outside of the time that is measured."""
    is_fragment: bool = False


class Turning:
    """Goes from page to page of a list, by the link that each has to the next."""

    def __init__(self, url: str) -> None:
        self.url, self.next = url, "?q="

    def __iter__(self) -> Iterator[str]:
        while True:
            yield f"{self.url}{self.next}"

    def after(self, response: Any) -> None:
        found = _NEXT.search(response.content.decode())
        self.next = unescape(found[1]) if found else "?q="


def filters(now: Any) -> dict[str, list[str]]:
    """Queries of each kind of filter."""
    day = f"{now - timedelta(days=20):%Y-%m-%d}"
    between = f"{now - timedelta(days=40):%Y-%m-%d}..{now - timedelta(days=31):%Y-%m-%d}"
    rare = f"archive.restore_{kinds.KINDS - 1}"
    return {
        "bucket": ["bucket:wrong_arguments", "bucket:wrong_tool", "bucket:none", "bucket:w*", "bucket:bad_planning"],
        "tool": [f"tool:{kinds.TOOLS[0]}", f"tool:{kinds.TOOLS[40]}", f"tool:{kinds.TOOLS[-1]}", f"tool:{rare}"],
        "tool, with *": ["tool:orders.*", "tool:docs.*", "tool:*.send", "tool:archive.*", f"tool:{rare[:-1]}*"],
        "version": ["version:6", "version:2", "version:0.9-legacy", "version:6 agent:mail", "-has:version"],
        "version that none has": ["version:77", "version:none", "version:8*", "agent:nobody", "agent:no*"],
        "outcome": ["outcome:failed", "outcome:success", "outcome:unknown"],
        "cost": ["cost:>0.01", "cost:<0.004", "cost:0.005..0.006", "cost:>1", "-has:cost"],
        "latency, steps, tokens": ["latency:>14", "latency:<5", "latency:>60", "steps:>12", "tokens:>12k", "errors:>0"],
        "has": ["has:intervention", "has:error", "has:label", "has:feedback", "has:proposal", "has:outcome"],
        "label, score": ["label:failure", "label:pass", "label:none", "score:>0.8", "score:<0.3"],
        "env, tag, region": ["env:dev", "env:canary", "tag:vip", "tag:audit", "env:c*", "meta.region:eu", "env:none"],
        "session, user": ["session:s-77", "session:s-1*", "user:u-12", "user:none", "user:u-99*"],
        "feedback": ["feedback.helpful:true", "feedback.score:>0.8", "feedback.nothing:true"],
        "not": ["-env:production", "-outcome:success", "-tool:orders.find -bucket:none", "-has:tools"],
        "or": ["env:dev or env:canary", "(outcome:failed or has:error) -label:none", "tag:audit or version:0.9-legacy"],
        "dates": [f"started:{day}", f"started:{between}", "after:3d", "before:50d", "after:3d outcome:failed"],
        "source": ["source:import", "source:rollout", "source:rollout outcome:failed"],
        "several": [
            "bucket:wrong_arguments -env:dev latency:>2 version:6",
            "tool:calendar.* outcome:failed cost:>0.005",
            "label:none has:proposal env:production after:30d",
            "env:canary outcome:failed has:label tag:nothing",
        ],
    }


def searches(rows: Any, source: random.Random) -> dict[str, list[str]]:
    """Text that many trajectories say, few, or none; phrases are taken from titles."""
    every = Words(source).every
    titles = list(rows.order_by("id").values_list("title", flat=True)[:40])
    phrases = [" ".join(title.split()[2:4]) for title in titles]
    return {
        "a common word": every[:10],
        "a word in between": every[300:2300:200],
        "a rare word": every[-10:],
        "a phrase": [f'"{phrase}"' for phrase in phrases[:10]],
        "the beginning of a word": [f"{word}*" for word in ("bar", "zi", every[-3][:5], "order")],
        "a word and a filter": [f"{word} outcome:failed -env:dev" for word in (*every[5:8], *every[800:803])],
        "what nobody said": ["quixotic", '"bar bar bar bar"', "zzz*", f"{every[0]} env:nowhere"],
    }


def of_list(slug: str, now: Any) -> Iterator[Page]:
    url = f"/p/{slug}/trajectories/"
    yield Page("list, first page", cycle([f"{url}?q="]), LIST_MS)
    turning = Turning(url)
    yield Page("list, next page", iter(turning), LIST_MS, after=turning.after)
    yield Page("", islice(iter(turning), DEEP), LIST_MS, after=turning.after)
    yield Page("list, 50 pages on", iter(turning), LIST_MS, after=turning.after)
    for name, queries in filters(now).items():
        yield Page(f"filter: {name}", _asking(url, queries), LIST_MS)


def of_search(slug: str, rows: Any, source: random.Random) -> Iterator[Page]:
    url = f"/p/{slug}/trajectories/"
    for name, queries in searches(rows, source).items():
        yield Page(f"text: {name}", _asking(url, queries), SEARCH_MS)
    words = searches(rows, source)
    given = {
        "facets": [""],
        "facets of a filter": ["outcome:failed", "env:canary", "bucket:none after:10d", "tool:*.send", "-has:version"],
        "facets of a text": [*words["a common word"][:3], *words["a rare word"][:2], *words["a phrase"][:2]],
    }
    for name, queries in given.items():
        yield Page(name, _asking(f"{url}facets/", queries), SEARCH_MS, is_fragment=True)


def of_trajectory(slug: str, ids: list[str], long: str, long_steps: int) -> Iterator[Page]:
    url = f"/p/{slug}/trajectories/"
    middle = long_steps // 2
    starts = [middle + 400 * number for number in range(-15, 15) if 0 < middle + 400 * number < long_steps] or [0]
    yield Page("a trajectory", cycle(f"{url}{one}/" for one in ids), DETAIL_MS)
    yield Page("its preview in the list", cycle(f"{url}{one}/preview/" for one in ids), DETAIL_MS, is_fragment=True)
    yield Page("a long trajectory", cycle([f"{url}{long}/"]), DETAIL_MS)
    at = [f"{url}{long}/?start={start}" for start in starts]
    yield Page("a long trajectory, in the middle", cycle(at), DETAIL_MS)
    for name in ("conversation", "steps"):
        windows = [f"{url}{long}/{name}/?start={start}" for start in starts]
        yield Page(f"a further window of its {name}", cycle(windows), DETAIL_MS, is_fragment=True)


def of_review(slug: str, queue: int) -> Iterator[Page]:
    """The desk of a queue that holds every trajectory, and the open queue of all that is proposed."""
    url = f"/p/{slug}/failures/queues/{queue}"
    yield Page("open queue, first item", cycle([f"/p/{slug}/failures/queue/"]), None)
    yield Page("queues", cycle([f"/p/{slug}/failures/queues/"]))
    yield Page("one queue", cycle([f"{url}/", f"{url}/?state=to_review"]))
    desk = Desk(url)
    yield Page("queue: take", iter([f"{url}/take/"] * 3), post=lambda _: {}, after=desk.after, is_fragment=True)
    yield Page("queue: next item, undecided", desk.to("skip"), post=lambda _: {}, after=desk.after, is_fragment=True)
    decided: Callable[[str], dict[str, str]] = lambda _: {"bucket": "wrong_tool", "seen": desk.seen}  # noqa: E731
    yield Page("queue: decide, next item", desk.to("decide"), post=decided, after=desk.after, is_fragment=True)


class Desk:
    """Knows which item is in hand."""

    def __init__(self, url: str) -> None:
        self.url, self.item, self.seen = url, "", "0"

    def after(self, response: Any) -> None:
        seen = _SEEN.search(response.content.decode())
        self.item, self.seen = response["HX-Push-Url"].rstrip("/").rpartition("/")[2], seen[1] if seen else "0"

    def to(self, verb: str) -> Iterator[str]:
        while True:
            yield f"{self.url}/review/{self.item}/{verb}/"


def of_lineage(slug: str, candidate: Any, ramp: Any) -> Iterator[Page]:
    """What everything in a turn came from and led to: all its counts, and a list."""
    run = candidate.version.produced_by.get()
    tasks = list(run.task_set.tasks.exclude(source=None).order_by("pk").select_related("source", "environment")[:30])
    used = run.base
    objects = {
        "trajectory": [task.source.trace_id for task in tasks],
        "task": [f"{task.environment.name}:{task.number}" for task in tasks],
        "version": [str(used), str(candidate.version)],
        "training_run": [str(run.pk)],
        "candidate": [str(candidate.pk)],
        "ramp": [str(ramp.pk)],
        "bucket": ["wrong_tool", "wrong_arguments"],
        "environment": sorted({task.environment.name for task in tasks}),
    }
    for kind, refs in objects.items():
        addresses = [f"/p/{slug}/promotions/lineage/{kind}/{ref}/" for ref in refs]
        yield Page(f"lineage of a {kind.replace('_', ' ')}, counts", cycle(addresses), LINEAGE_MS, is_fragment=True)
    lists = [f"/p/{slug}/promotions/lineage/version/{used}/?level=down.{level}" for level in ("reported", "answered")]
    yield Page("lineage of a version, its traffic", cycle(lists), LINEAGE_MS)
    arms = [f"/p/{slug}/promotions/lineage/ramp/{ramp.pk}/?level=down.met_{arm}" for arm in ("candidate", "live")]
    yield Page("lineage of a ramp, its traffic", cycle(arms), LINEAGE_MS)


def of_others(slug: str) -> Iterator[Page]:
    """Pages of this room and beside it that read the same rows."""
    for name in ("", "failures/", "failures/buckets/wrong_arguments/"):
        yield Page(f"/{name}", cycle([f"/p/{slug}/{name}"]))


def _asking(url: str, queries: list[str]) -> Iterator[str]:
    return cycle(f"{url}?{urlencode({'q': query})}" for query in queries)


def moment() -> Any:
    return timezone.now()
