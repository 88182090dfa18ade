"""Questions that every page asks in the same form: written to SQL once, and planned once per connection.

    _SAVED = PreparedQuery(lambda project, user: View.objects.filter(project=project, owner=user))
    views = _SAVED(project.pk, user.pk)

Django writes a query anew each time it is asked, which takes several times what PostgreSQL needs to answer it. What is
said of `planned` holds here too: the plan is not to depend on the values. After five answers PostgreSQL may plan for
any values: for an average trajectory, say, which is short.

How rows become models is asked of parts that Django does not document, as in `system/sql.py`, and nowhere else: a test
holds that. Those who ask know only a queryset and its rows.
"""

from collections.abc import Callable
from functools import cached_property
from inspect import signature
from typing import Any, Generic, TypeVar

from django.db import connection
from django.db.models import Expression, Model, QuerySet
from django.db.models.query import get_related_populators

from flywheel.system.sql import planned

M = TypeVar("M", bound=Model)


class PreparedQuery(Generic[M]):
    """A query with places for values, which `form` gets as its arguments. It answers rows as the query would: models,
    with what `select_related` names. What a queryset does with them later, as `prefetch_related`, is not done."""

    def __init__(self, form: Callable[..., QuerySet[M]]) -> None:
        self._form = form

    def __call__(self, *values: object) -> list[M]:
        return self._written.answer(values)

    def first(self, *values: object) -> M | None:
        return next(iter(self(*values)), None)

    @cached_property
    def _written(self) -> "_Written[M]":
        return _Written(self._form(*map(_Place, range(len(signature(self._form).parameters)))))


def naming(model: type[Model], name: str, key: object) -> QuerySet[Any]:
    """The rows that name the one of `model` with this key: those that it knows as `name`, without importing them."""
    relation: Any = model._meta.get_field(name)
    found: QuerySet[Any] = relation.related_model.objects.filter(**{relation.field.name: key})
    return found


class _Place(Expression):
    """Where a value will stand."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def as_sql(self, *_: Any) -> tuple[str, tuple[Any, ...]]:
        return "%s", (self,)


class _Written(Generic[M]):
    """The SQL of a query, and how its rows are read: what `ModelIterable` of Django finds out for each answer."""

    def __init__(self, queryset: QuerySet[M]) -> None:
        compiler = queryset.query.get_compiler(connection.alias)
        self.sql, self.values = compiler.as_sql()
        self.model = queryset.model
        columns, about = compiler.select, compiler.klass_info
        self.until = about["select_fields"][-1] + 1
        self.names = [column.target.attname for column, *_ in columns[: self.until]]
        self.related = get_related_populators(about, columns, connection.alias)  # type: ignore[call-arg]
        # Not the compiler itself, which would keep the connection of the thread that asked first.
        self.converters = list(compiler.get_converters([column for column, *_ in columns]).items())

    def answer(self, given: tuple[object, ...]) -> list[M]:
        rows = planned(self.sql, [given[each.number] if isinstance(each, _Place) else each for each in self.values])
        if connection.queries_logged:  # who counts the queries of a page is to count this one too
            connection.queries_log.append({"sql": self.sql, "time": "0"})
        found = []
        for row in map(list, rows):
            for at, (convert, column) in self.converters:
                for step in convert:
                    row[at] = step(row[at], column, connection)
            one = self.model.from_db(connection.alias, self.names, row[: self.until])
            for other in self.related:
                other.populate(row, one)
            found.append(one)
        return found
