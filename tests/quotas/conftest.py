"""Who decides: petra, an approver who is in no team."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from portal.accounts.models import User


@pytest.fixture
def petra(db: None) -> User:
    """Approver; in no team, and no operator."""
    from tests.factories import UserFactory

    return UserFactory(username="petra", is_approver=True)
