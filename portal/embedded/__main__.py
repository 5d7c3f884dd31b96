"""`python -m portal.embedded up|down|status|backup|restore|notebook`, installed as `berth-server`."""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036  (reports the requirement to older versions)
    sys.exit(f"Berth needs Python 3.11 or newer; this is {sys.version.split()[0]}. Use `make up`.")

from portal.embedded.cli import main


def run() -> None:
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
