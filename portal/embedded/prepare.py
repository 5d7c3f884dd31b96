"""Preparations of `up` that need Django: migrations, static files, initial data.

Runs as a separate process, so that the long-running supervisor stays small. Functions import Django, so that
a missing module becomes a `Problem`; models need `django.setup()` first.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from portal.common import loading
from provisioning.service.console import Console, Problem
from provisioning.service.environ import INSTALL
from provisioning.service.files import write_file


def main() -> int:
    """Run the preparations, and return 0 or 1. Prints a failure as one line; a log gets the traceback."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    console = Console()
    log = Path(os.environ["BERTH_HOME"]) / "logs" / "prepare.log"
    try:
        _prepare(console)
    except Problem as problem:
        console.complain(problem)
        return 1
    except Exception as error:
        try:
            write_file(log, traceback.format_exc())
            details = f"Details: {log}"
        except OSError:
            details = ""
        console.complain(_problem(error, details))
        return 1
    return 0


def _prepare(console: Console) -> None:
    with console.step("Database") as step:
        step.update("opening")
        # Imported here, because this step reports a missing module.
        import django

        # This process ends soon.
        loading.begin()
        django.setup()
        step.result = _migrate()
    with console.step("Static files") as step:
        step.update("collecting")
        step.result = _collect_static()
    # Needs `django.setup()`.
    from django.core.management import call_command

    # Redis starts later. The work of messages that cannot be sent now is in the database, which services
    # check first.
    logging.getLogger("portal.fleet.inventory.node_commands").setLevel(logging.ERROR)
    call_command("bootstrap")


def _migrate() -> str:
    # Imported here: a missing module is reported as a `Problem`.
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    steps = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    if steps:
        call_command("migrate", interactive=False, verbosity=0)
    if not steps:
        done = "up to date"
    else:
        done = f"{steps} migrations applied" if executor.loader.applied_migrations else "new"
    return f"{connection.vendor}, {done}"


def _collect_static() -> str:
    """Collect static files if a source file has changed, because compressing takes seconds."""
    # Imported here: a missing module is reported as a `Problem`.
    from django.conf import settings
    from django.contrib.staticfiles.finders import get_finders
    from django.core.management import call_command

    digest = hashlib.sha256()
    number = 0
    for finder in get_finders():
        for path, storage in finder.list(ignore_patterns=[]):
            file_stat = Path(storage.path(path)).stat()
            digest.update(f"{path}\0{file_stat.st_size}\0{file_stat.st_mtime_ns}\n".encode())
            number += 1
    root = Path(settings.STATIC_ROOT)
    stamp = root / ".berth-collected"
    current = digest.hexdigest()
    if stamp.exists() and stamp.read_text().strip() == current:
        return f"{number} files, up to date"
    stamp.unlink(missing_ok=True)
    call_command("collectstatic", interactive=False, verbosity=0, clear=True, stdout=io.StringIO())
    write_file(stamp, current + "\n")
    return f"{number} files collected"


def _problem(error: Exception, details: str) -> Problem:
    """Return a problem for common failures: a missing module, a setting, the database, the disk."""
    if isinstance(error, ModuleNotFoundError):
        return Problem(f"The Python module {error.name} is missing from {sys.prefix}.", INSTALL)
    if isinstance(error, OSError):
        return Problem(
            f"{error.filename or 'A file'} cannot be used ({error.strerror}).",
            f"Make it writable for this user, or free some space. {details}",
        )
    django_errors = import_module("django.core.exceptions")
    database_errors = import_module("django.db.utils")
    text = " ".join(str(error).split())
    if isinstance(error, django_errors.ImproperlyConfigured):
        return Problem(f"Invalid setting: {text}", "Correct that environment variable.")
    if isinstance(error, database_errors.DatabaseError):
        return Problem(f"Database error: {text}", f"Check DATABASE_URL and the disk. {details}")
    return Problem(f"The preparation failed ({type(error).__name__}): {text}", details)


if __name__ == "__main__":
    sys.exit(main())
