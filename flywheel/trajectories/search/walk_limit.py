"""A limit for filters that no index answers: what some attribute is not, and patterns that begin with any letters.

    with limited(query):
        page = page_at(…)

They look at one trajectory after the other until enough are found, which is quick where many match. Where hardly any
does, the statement is stopped, and who asks is told how to ask less: a filter never answers with a part of what it
means. A pattern whose beginning many have, all of them old, is walked to as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import OperationalError, transaction

from flywheel.edge.refusals import Unreadable
from flywheel.system.sql import patience
from flywheel.trajectories.search.query import Query

WALK_S = 5.0
"""How long one statement may look."""


class TookTooLong(Unreadable):
    """The filter would have to look at too many trajectories."""


@contextmanager
def limited(query: Query) -> Iterator[None]:
    """Stop a statement in the block that looks for too long, if the query walks. Raises TookTooLong."""
    if not query.walks:
        yield
        return
    try:
        with transaction.atomic():
            patience(statement_s=WALK_S, lock_s=WALK_S)
            yield
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
            raise
        raise TookTooLong(
            f"This filter was stopped after {WALK_S:g} seconds. No index finds what an attribute is not, nor a value "
            "by its end, and too many trajectories would be read for those that match. Begin the value with its first "
            "letters, or name a period beside it, such as started:7d."
        ) from error
