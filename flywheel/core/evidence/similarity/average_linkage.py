"""Clusters of failures that are alike: average linkage over the rows of `failure_similarity.Space`.

    cluster(space.rows, apart=0.5)     which rows belong together, and which to nobody
    measure(space, [3, 7, 8])          what the rows of one cluster have in common

Two clusters stay two when their members are further apart than `apart` on average, so how fine the clusters are is one
number with a meaning, and how many there are follows from the failures. No more than `AT_ONCE` rows are compared each
with each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flywheel.core.evidence.similarity.failure_similarity import Space

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Array = np.ndarray[Any, Any]
AT_ONCE = 3_000
"""Failures of which each is compared with each other: 72 MB of distances."""
JOINED_AT_ONCE = 2_000
ROWS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Grouping:
    clusters: list[list[int]]
    """Rows that are alike, at least two together; the largest cluster first."""
    alone: list[int]
    linked: int
    """How many rows were linked, each compared with each of its round; the others joined what was there."""


def cluster(
    rows: "csr_matrix",
    apart: float,
    *,
    seed: int = 0,
    at_once: int = AT_ONCE,
    between: Callable[[], None] = lambda: None,
) -> Grouping:
    """Average linkage, cut where two clusters are further apart than this on average.

    Of more than `at_once` rows, as many are drawn by the seed and linked, the others join the cluster that they are
    near enough to, and what is left is drawn from again. The same rows and seed give the same clusters. `between` is
    called before each round; what it raises ends it.
    """
    count, drawn = rows.shape[0], 0
    labels = np.full(count, -1)
    waiting = np.arange(count) if count <= at_once else np.random.default_rng(seed).permutation(count)
    while len(waiting) > 1:
        between()
        now, waiting = waiting[:at_once], waiting[at_once:]
        linked = _linked(rows[now], apart)
        labels[now[linked >= 0]] = linked[linked >= 0] + labels.max() + 1
        drawn += len(now)
        if len(waiting):
            labels[waiting] = _joined(rows, waiting, labels, apart)
            waiting = waiting[labels[waiting] < 0]
    if drawn > at_once:
        _reconcile(rows, labels, apart, at_once)
    groups: dict[int, list[int]] = {}
    for at, label in enumerate(labels.tolist()):
        groups.setdefault(label, []).append(at)
    alone = groups.pop(-1, [])
    return Grouping(sorted(groups.values(), key=lambda group: (-len(group), group[0])), alone, drawn)


def _linked(rows: "csr_matrix", apart: float) -> Array:
    """A number for each row, from 0 without gaps; -1 where it would be alone."""
    from sklearn.cluster import AgglomerativeClustering

    if rows.shape[0] < 2:
        return np.full(rows.shape[0], -1)
    count, columns = rows.shape[0], rows.T.tocsr()
    distance = np.empty((count, count))
    for start in range(0, count, ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        distance[some] = np.clip(1 - (rows[some] @ columns).toarray(), 0, None)
    np.fill_diagonal(distance, 0)
    linkage = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="average", distance_threshold=apart
    )
    found = linkage.fit_predict(distance)
    sizes = np.bincount(found)
    numbers = np.where(sizes > 1, np.cumsum(sizes > 1) - 1, -1)
    return np.asarray(numbers[found])


def _centres(rows: "csr_matrix", labels: Array) -> "csr_matrix":
    """The mean row of each cluster: its product with a row is how alike that is to the members on average."""
    from scipy.sparse import csr_matrix

    inside = np.flatnonzero(labels >= 0)
    sizes = np.bincount(labels[inside])
    share = (1 / sizes[labels[inside]]).astype(np.float32)
    return csr_matrix((share, (labels[inside], inside)), shape=(len(sizes), rows.shape[0])) @ rows


def _joined(rows: "csr_matrix", waiting: Array, labels: Array, apart: float) -> Array:
    """The cluster that each of the waiting rows is near enough to, else -1."""
    found = np.full(len(waiting), -1)
    if labels.max() < 0:
        return found
    centres = _centres(rows, labels).T.tocsc()
    for start in range(0, len(waiting), JOINED_AT_ONCE):
        some = waiting[start : start + JOINED_AT_ONCE]
        likeness = (rows[some] @ centres).toarray()
        best = likeness.argmax(axis=1)
        near = 1 - likeness[np.arange(len(some)), best] <= apart
        found[start : start + len(some)] = np.where(near, best, -1)
    return found


def _reconcile(rows: "csr_matrix", labels: Array, apart: float, at_once: int) -> None:
    """Join the findings of different rounds where near enough: clusters to each other, and rows that were alone
    to a cluster or to each other."""
    if 1 < labels.max() + 1 <= at_once:
        merged, inside = _linked(_centres(rows, labels), apart), labels >= 0
        apart_from_all = merged < 0
        merged[apart_from_all] = merged.max() + 1 + np.arange(apart_from_all.sum())
        labels[inside] = merged[labels[inside]]
    alone = np.flatnonzero(labels < 0)
    labels[alone] = _joined(rows, alone, labels, apart)
    alone = alone[labels[alone] < 0][:at_once]
    linked = _linked(rows[alone], apart)
    labels[alone[linked >= 0]] = linked[linked >= 0] + labels.max() + 1


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one cluster."""

    likeness: Array
    """Of each member to the others, on average."""
    cohesion: float | None
    """Mean likeness of two members; None for a single one."""
    medoid: int
    """The member that is most like the others, by its place."""
    weights: Array
    """Of each column, by how much more the cluster has of it than all failures have."""


def measure(space: Space, at: Sequence[int]) -> Measured:
    """Measure what the rows at these places have in common."""
    mine = space.rows[list(at)]
    count = len(at)
    total = np.asarray(mine.sum(axis=0)).ravel()
    own = np.asarray(mine.multiply(mine).sum(axis=1)).ravel()
    likeness = (mine @ total - own) / (count - 1) if count > 1 else np.zeros(1)
    typical = np.asarray(space.rows.mean(axis=0)).ravel()
    return Measured(
        np.clip(likeness, 0, 1),
        float(np.clip(likeness.mean(), 0, 1)) if count > 1 else None,
        int(likeness.argmax()),
        total / count - typical,
    )
