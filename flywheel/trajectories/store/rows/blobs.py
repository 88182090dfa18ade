"""Values too large for their step: taken out of its body, stored once by their digest, put back when they are read.

A string of more than `LARGEST` bytes leaves a preview in its place. Which digests a step may ask for stands in
`Step.blobs`, so that a body that only looks as if it held a reference gets nothing.
"""

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from flywheel.trajectories.models import Blob, Step

LARGEST = 64 * 1024
PREVIEW = 1024
_MARK = "$blob"


def spill(body: bytes) -> tuple[bytes, dict[str, str]]:
    """The body with its large strings taken out, and those strings by digest. A small body is answered as it is."""
    if len(body) <= LARGEST:
        return body, {}
    taken: dict[str, str] = {}
    left = _take(json.loads(body), taken)
    return (json.dumps(left, ensure_ascii=False, separators=(",", ":")).encode(), taken) if taken else (body, {})


def _take(value: Any, taken: dict[str, str]) -> Any:
    if isinstance(value, str):
        if len(value) <= LARGEST // 4 or len(encoded := value.encode()) <= LARGEST:
            return value
        digest = hashlib.sha256(encoded).hexdigest()
        taken[digest] = value
        return {_MARK: digest, "bytes": len(encoded), "preview": value[:PREVIEW]}
    if isinstance(value, dict):
        return {key: _take(item, taken) for key, item in value.items()}
    if isinstance(value, list):
        return [_take(item, taken) for item in value]
    return value


def restore(rows: Iterable[Step]) -> None:
    """Put the large values back into the bodies of these steps, with one read for all of them."""
    spilled = [row for row in rows if row.blobs]
    if not spilled:
        return
    wanted = {digest for row in spilled for digest in row.blobs or ()}
    projects = {row.trajectory.project_id for row in spilled}
    found = Blob.objects.filter(project__in=projects, sha256__in=wanted)
    values = dict(found.values_list("sha256", "content"))
    for row in spilled:
        own = {digest: values[digest] for digest in row.blobs or () if digest in values}
        row.body = _put_back(row.body, own)


@dataclass(frozen=True, slots=True)
class Spilled:
    """A large value of a step."""

    path: str
    """Where it stands in the body: `attributes.gen_ai.input.messages`."""
    size: int
    """In bytes."""
    digest: str


def preview(body: Any, digests: Collection[str]) -> tuple[Any, list[Spilled]]:
    """A body with the beginnings of those of its values that were taken out, and what they are."""
    found: list[Spilled] = []
    return _preview(body, set(digests), (), found), found


def _preview(value: Any, digests: Collection[str], path: tuple[str, ...], found: list[Spilled]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_MARK, "bytes", "preview"} and isinstance(value[_MARK], str) and value[_MARK] in digests:
            found.append(Spilled(".".join(path), value["bytes"], value[_MARK]))
            return f"{value['preview']}…"
        return {key: _preview(item, digests, (*path, key), found) for key, item in value.items()}
    if isinstance(value, list):
        return [_preview(item, digests, (*path, str(index)), found) for index, item in enumerate(value)]
    return value


def _put_back(value: Any, values: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if _MARK in value and value.keys() == {_MARK, "bytes", "preview"}:
            return values.get(value[_MARK], value) if isinstance(value[_MARK], str) else value
        return {key: _put_back(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_back(item, values) for item in value]
    return value
