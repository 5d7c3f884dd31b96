"""The tables of a database in which there is nothing yet, made at once instead of migration by migration.

Every migration before the last one is about data and columns that a new database does not have, and
Django builds its models anew for each of them: half a minute, for most of which nobody gets anything.
The tables come from the state to which the migrations lead, so they are the only description of them.

No migration may therefore bring rows of its own: what a new site begins with is `bootstrap`'s.
`tests/common/test_new_database.py` holds both, on each database.
"""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder


def make(connection: BaseDatabaseWrapper) -> int:
    """Make all tables, and note all migrations as applied; gives their number.

    0, and nothing is done, where the database has a table already. All of it or nothing is kept.
    """
    recorder = MigrationRecorder(connection)
    if set(connection.introspection.table_names()) - {recorder.Migration._meta.db_table}:
        return 0
    # Outside of the transaction: it opens a schema editor of its own.
    recorder.ensure_schema()
    if recorder.migration_qs.exists():
        return 0
    loader = MigrationLoader(connection)
    models = loader.project_state().apps.get_models()
    with connection.schema_editor() as editor:
        for model in models:
            if model._meta.can_migrate(connection):
                editor.create_model(model)
        for app, name in loader.graph.nodes:
            recorder.record_applied(app, name)
    return len(loader.graph.nodes)
