"""Queries compiled to SQL once, for hot paths where compiling takes longer than running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Field, JSONField, QuerySet

ConvertedRow = Sequence[Any]
RawRow = tuple[Any, ...]
"""Row as returned by the database driver: input of `PreparedRows.convert`, comparable with other raw rows.
"""
# Index in the row, converter functions, and the expression passed to them.
_Converters = tuple[tuple[int, Sequence[Callable[..., Any]], Any], ...]


class PreparedRows:
    """Rows of `make(values)`, a `values_list` queryset with exactly these parameters in this order.

    `field` returns the model field that adapts the values for SQL. Statements are cached by number of values.
    With `raw_json`, JSON columns are returned as text, so that callers can parse equal texts once.
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
        self._statement = lru_cache(maxsize=256)(self._compile)

    def rows(self, values: Sequence[Any]) -> list[ConvertedRow]:
        """Return the current rows for these values; empty without values."""
        return [self.convert(row) for row in self.raw_rows(values)]

    def raw_rows(self, values: Sequence[Any]) -> list[RawRow]:
        """Return rows without converting types that the database lacks, such as times in SQLite."""
        if not values:
            return []
        connection = connections[DEFAULT_DB_ALIAS]
        sql, _converters = self._statement(connection.vendor, len(values))
        with connection.cursor() as cursor:
            cursor.execute(sql, self._adapted(values, connection))
            fetched: list[RawRow] = cursor.fetchall()
        return fetched

    def convert(self, row: RawRow) -> ConvertedRow:
        """Convert one row of `raw_rows` to Python values."""
        connection = connections[DEFAULT_DB_ALIAS]
        _sql, converters = self._statement(connection.vendor, 1)
        return _convert_row(row, converters, connection) if converters else row

    def _adapted(self, values: Sequence[Any], connection: BaseDatabaseWrapper) -> list[Any]:
        field = self._field()
        return [field.get_db_prep_value(value, connection) for value in values]

    def _compile(self, _vendor: str, count: int) -> tuple[str, _Converters]:
        connection = connections[DEFAULT_DB_ALIAS]
        sample = [self._field().to_python(number) for number in range(count)]
        compiler = self._make(sample).query.get_compiler(connection=connection)
        sql, params = compiler.as_sql()
        if list(params) != self._adapted(sample, connection):
            raise ValueError("a prepared query has other parameters than its values")
        converters_by_column = compiler.get_converters([expression for expression, *_ in compiler.select])
        return sql, tuple(
            (position, converters, expression)
            for position, (converters, expression) in converters_by_column.items()
            if not (self._raw_json and isinstance(expression.output_field, JSONField))
        )


def _convert_row(row: RawRow, converters: _Converters, connection: BaseDatabaseWrapper) -> ConvertedRow:
    values = list(row)
    for position, steps, expression in converters:
        value = values[position]
        if value is not None:
            for step in steps:
                value = step(value, expression, connection)
            values[position] = value
    return values
