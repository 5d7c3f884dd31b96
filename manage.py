#!/usr/bin/env python
"""Command-line entry of the portal."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    try:
        from django.core.management import execute_from_command_line
    except ModuleNotFoundError as error:
        sys.exit(f"The Python module “{error.name}” is missing. Run `make up`, which installs all of them.")
    execute_from_command_line(sys.argv)
