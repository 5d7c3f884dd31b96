"""Finds out which constraint an `IntegrityError` violates, on PostgreSQL and SQLite."""

from __future__ import annotations

import re

from django.db import IntegrityError
from django.db.models import Field, Model, UniqueConstraint

_COLUMNS = re.compile(r"UNIQUE constraint failed: (.+)")


def violates(error: IntegrityError, model: type[Model], *names: str) -> bool:
    """Return whether `error` violates one of these unique constraints of `model`.

    Pass names of `UniqueConstraint`s or of unique fields. Raises `FieldDoesNotExist` for any other name, and
    `ValueError` for a field that is not unique.
    """
    constraints = [_Constraint(model, name) for name in names]
    diag = getattr(error.__cause__, "diag", None)
    if diag is not None:
        return any(diag.constraint_name == constraint.name for constraint in constraints)
    match = _COLUMNS.search(str(error))
    failed = frozenset(match[1].split(", ")) if match else frozenset()
    return any(failed == constraint.failed for constraint in constraints)


class _Constraint:
    """A constraint: its `name` in PostgreSQL, and the text `failed` in SQLite's message."""

    def __init__(self, model: type[Model], name: str) -> None:
        table = model._meta.db_table
        for constraint in model._meta.constraints:
            if isinstance(constraint, UniqueConstraint) and constraint.name == name:
                columns = [_field(model, field_name).column for field_name in constraint.fields]
                self.name = name
                # SQLite reports columns, and for constraints on expressions the index.
                self.failed = frozenset(f"{table}.{column}" for column in columns) or {f"index '{name}'"}
                return
        field = _field(model, name)
        if not field.unique:
            raise ValueError(f"{model.__name__}.{name} is not unique")
        self.name = f"{table}_pkey" if field.primary_key else f"{table}_{field.column}_key"
        self.failed = frozenset({f"{table}.{field.column}"})


def _field(model: type[Model], name: str) -> Field:
    field = model._meta.get_field(name)
    assert isinstance(field, Field)
    return field
