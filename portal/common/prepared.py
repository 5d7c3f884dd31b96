"""Queries whose SQL is made once: for what is asked so often that to make it takes longer than to run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, JSONField, QuerySet

Row = Sequence[Any]
RawRow = tuple[Any, ...]
"""As the database's driver gave it: what `Prepared.converted` takes, and what two rows can be compared by."""
# Where a value stands in a row, what makes Python's of it, and the expression that both are told.
_Converters = tuple[tuple[int, Sequence[Callable[..., Any]], Any], ...]


class Prepared:
    """The rows of `make(values)`, a `values_list` whose parameters are these values in their order.

    `field` says how they are written in SQL. The statement is kept by the number of values. With `raw_json`
    the columns with JSON are its text, so that whoever reads many rows can parse equal ones once.
    """

    def __init__(
        self,
        make: Callable[[Sequence[Any]], QuerySet[Any, Any]],
        field: Callable[[], Field[Any, Any]],
        *,
        raw_json: bool = False,
    ) -> None:
        self._make = make
        self._field = field
        self._raw_json = raw_json
        self._statement = lru_cache(maxsize=256)(self._compiled)

    def rows(self, values: Sequence[Any]) -> list[Row]:
        """The rows for these values as the database has them now; none where there are no values."""
        return [self.converted(row) for row in self.raw_rows(values)]

    def raw_rows(self, values: Sequence[Any]) -> list[RawRow]:
        """The same without Python's values for what the database has no type of, such as times in SQLite."""
        if not values:
            return []
        connection = connections[DEFAULT_DB_ALIAS]
        sql, _converters = self._statement(connection.vendor, len(values))
        with connection.cursor() as cursor:
            cursor.execute(sql, self._adapted(values, connection))
            found: list[RawRow] = cursor.fetchall()
        return found

    def converted(self, row: RawRow) -> Row:
        """One of `raw_rows` with Python's values."""
        connection = connections[DEFAULT_DB_ALIAS]
        _sql, converters = self._statement(connection.vendor, 1)
        return _converted(row, converters, connection) if converters else row

    def _adapted(self, values: Sequence[Any], connection: BaseDatabaseWrapper) -> list[Any]:
        field = self._field()
        return [field.get_db_prep_value(value, connection) for value in values]

    def _compiled(self, _vendor: str, count: int) -> tuple[str, _Converters]:
        connection = connections[DEFAULT_DB_ALIAS]
        sample = [self._field().to_python(number) for number in range(count)]
        compiler = self._make(sample).query.get_compiler(connection=connection)
        sql, params = compiler.as_sql()
        if list(params) != self._adapted(sample, connection):
            raise ValueError("a prepared query has other parameters than its values")
        found = compiler.get_converters([expression for expression, *_ in compiler.select])
        return sql, tuple(
            (position, converters, expression)
            for position, (converters, expression) in found.items()
            if not (self._raw_json and isinstance(expression.output_field, JSONField))
        )


def _converted(row: RawRow, converters: _Converters, connection: BaseDatabaseWrapper) -> Row:
    values = list(row)
    for position, steps, expression in converters:
        value = values[position]
        if value is not None:
            for step in steps:
                value = step(value, expression, connection)
            values[position] = value
    return values
