"""Finishes an environment inside the sandbox of its build. Standard library only.

Run as `python -I -S finishing.py PLACE WORKERS FILE DEFAULTS` with the base Python, 3.9 or newer, so that
nothing of the environment is imported. It compiles modules to bytecode, which runs no code of them, writes
JupyterLab's defaults (JSON), and writes the environment's contents to FILE as JSON. It prints lines `compiled
N of M`.
"""

from __future__ import annotations

import compileall
import csv
import json
import os
import sys
import time
from pathlib import Path

NOTE_EVERY_S = 0.5
NESTED = 40


def main() -> None:
    place, workers = Path(sys.argv[1]), int(sys.argv[2])
    (site,) = place.glob("lib/python3*/site-packages")
    compile_all(site, workers)
    set_defaults(place, sys.argv[4])
    Path(sys.argv[3]).write_text(json.dumps(contents(place, site)))


def compile_all(site: Path, workers: int) -> None:
    """Compile every module to bytecode, so that no start has to; skip invalid modules."""
    entries = sorted(path for path in site.iterdir() if path.name != "__pycache__")
    noted = 0.0
    for number, path in enumerate(entries, 1):
        if path.is_dir() and not path.is_symlink() and not path.name.endswith(".dist-info"):
            compileall.compile_dir(str(path), maxlevels=NESTED, quiet=2, workers=workers, legacy=False)
        elif path.suffix == ".py":
            compileall.compile_file(str(path), quiet=2, legacy=False)
        if time.monotonic() - noted > NOTE_EVERY_S or number == len(entries):
            noted = time.monotonic()
            print(f"compiled {number} of {len(entries)}", flush=True)


def set_defaults(place: Path, defaults: str) -> None:
    """Write default settings (JSON) for JupyterLab, if it is installed."""
    settings = place / "share" / "jupyter" / "lab" / "settings"
    if settings.parent.is_dir():
        settings.mkdir(exist_ok=True)
        (settings / "overrides.json").write_text(defaults)


def contents(place: Path, site: Path) -> dict[str, object]:
    """Return packages with their sizes in KiB, and programs."""
    return {
        "packages": sorted(filter(None, map(package, site.glob("*.dist-info")))),
        "programs": sorted(
            path.name for path in (place / "bin").iterdir() if path.is_file() and os.access(path, os.X_OK)
        ),
    }


def package(info: Path) -> tuple[str, str, int] | None:
    name = version = ""
    try:
        with (info / "METADATA").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():
                    break
                key, _, value = line.partition(":")
                if key == "Name":
                    name = value.strip()
                elif key == "Version":
                    version = value.strip()
        total = 0
        with (info / "RECORD").open(newline="", encoding="utf-8", errors="replace") as file:
            for row in csv.reader(file):
                if row and (info.parent / row[0]).is_file():
                    total += (info.parent / row[0]).stat().st_size
    except (OSError, csv.Error, ValueError):
        if not name or not version:
            return None
        total = 0
    return name, version, (total + 1023) // 1024


if __name__ == "__main__":
    main()
