"""The kinds of failure that one project tells apart: the built-in ones, then its own, which `failures` makes."""

from typing import Any

from flywheel.accounts.models import Project
from flywheel.core.detectors import standard_buckets
from flywheel.core.detectors.standard_buckets import BUCKETS, Bucket
from flywheel.edge.prepared_queries import PreparedQuery, naming

_OWN = PreparedQuery(lambda project: naming(Project, "buckets", project))
_READ = "_buckets"


def every(project: Project) -> dict[str, Bucket]:
    """Also those that are archived: what was filed under them keeps its name. One statement for each `Project` read."""
    read: dict[str, Any] = vars(project)
    if _READ not in read:
        read[_READ] = _buckets_of(project.pk)
    known: dict[str, Bucket] = read[_READ]
    return known


def keys_named(project: int, text: str) -> list[str]:
    """The keys of the project's buckets with this key or label, which search takes alike; else the text itself."""
    return [text] if text in BUCKETS else standard_buckets.keys_named(text, _buckets_of(project))


def _buckets_of(project: int) -> dict[str, Bucket]:
    return BUCKETS | {row.key: row.bucket for row in _OWN(project)}


def forget(project: Project) -> None:
    """Discard the buckets that were read, since they have changed."""
    vars(project).pop(_READ, None)


def name_of(project: Project, key: str) -> str:
    """In running text: `wrong tool`. A bucket that the project does not know shows its key."""
    return standard_buckets.name_of(key, every(project))
