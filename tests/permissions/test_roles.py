"""docs/roles.md is current."""

from __future__ import annotations

from pathlib import Path

from tests.permissions import roles

PAGE = Path(__file__).resolve().parents[2] / "docs" / "roles.md"


def test_committed_page_is_current() -> None:
    assert PAGE.read_text() == roles.document(), "Run: python -m tests.permissions.roles > docs/roles.md"
