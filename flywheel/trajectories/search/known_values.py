"""Which tools and tags a project has: what a pattern such as `tool:calendar.*` stands for.

No index leads from a pattern to the trajectories with a tool like it; one leads to those with one of some tools.
Triggers append to `Item`, with the first trajectory that has a name, so whoever sees a trajectory sees its names here.
What is deleted appends its names as doubted, and `forget` deletes those that no trajectory has any more.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import OperationalError, connection, transaction

from flywheel.trajectories.models import Item, Trajectory

MOST = 300
"""Names that one pattern may stand for; of more, every trajectory is looked at as if nothing were known."""
AT_ONCE = 500
LOCKED = 20
"""Names that are deleted while everybody who stores waits."""
PATIENCE = "200ms"
"""How long each step of that may take."""


def like(project: int, field: str, pattern: str) -> list[str] | None:
    """The project's names that are LIKE the pattern; None where there are too many. Some may be of no trajectory."""
    known = Item.objects.filter(project=project, field=field, name__like=pattern)
    found = list(known.values_list("name", flat=True).distinct()[: MOST + 1])
    return found if len(found) <= MOST else None


def forget() -> int:
    """Delete names that no trajectory has any more; returns how many. Names in use lose their doubt."""
    doubted = Item.objects.filter(is_doubted=True).order_by("pk")[:AT_ONCE]
    unused = [item for item in doubted if not _is_used(item)]
    used = [item.pk for item in doubted if item not in unused]
    Item.objects.filter(pk__in=used).delete()
    return _delete(unused) if unused else 0


def _delete(unused: list[Item]) -> int:
    """Who stores a name that is known does not append it, so nobody may be doing that: for a moment nobody stores."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")
            cursor.execute(f"SET LOCAL statement_timeout = '{PATIENCE}'")
            cursor.execute("LOCK TABLE trajectories_item IN ACCESS EXCLUSIVE MODE")
            gone = [item for item in unused[:LOCKED] if not _is_used(item)]
            for item in gone:
                Item.objects.filter(project=item.project_id, field=item.field, name=item.name).delete()
            return len(gone)
    except OperationalError:  # somebody stores for longer; the next sweep tries it again
        return 0


def _is_used(item: Item) -> bool:
    assert isinstance(Trajectory._meta.get_field(item.field), ArrayField)
    having = {f"{item.field}__contains": [item.name]}
    return Trajectory.objects.filter(project=item.project_id, **having).exists()
