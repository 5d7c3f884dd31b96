"""`python -m portal` is Django's command line (`manage.py`), wherever Berth is installed."""

from __future__ import annotations

import os
import sys

from portal.common import loading


def main() -> None:
    loading.begin()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    try:
        # Imported here: it is missing before `make up` has run.
        from django.core.management import execute_from_command_line
    except ModuleNotFoundError as error:
        sys.exit(f"The Python module “{error.name}” is missing. Run `make up`, which installs all of them.")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
