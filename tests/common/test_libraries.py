"""Third-party libraries are listed with version, as docs/security.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioning.service.environ import ROOT

LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PINNED = re.compile(
    r"[A-Za-z0-9._-]+(\[[a-z0-9,_-]+\])?==[^\s;]+( ?;[^\\]*)?( \\\n {4}--hash=sha256:[0-9a-f]{64})+"
)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_package_is_pinned_by_version_and_hash(lock: Path) -> None:
    text = "\n".join(
        line for line in lock.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")
    )
    for entry in re.split(r"\n(?! )", text):
        assert PINNED.fullmatch(entry), entry


def test_every_library_of_pages_is_listed() -> None:
    vendor = ROOT / "static" / "vendor"
    listed = set(re.findall(r"^\| `([^`]+)` \|", (vendor / "README.md").read_text(), re.MULTILINE))
    assert listed == {folder.name for folder in vendor.iterdir() if folder.is_dir()} and len(listed) >= 4
