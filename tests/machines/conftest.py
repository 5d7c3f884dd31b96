from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from portal.fleet.inventory.models import Pool
from tests.newcomers import Newcomer, open_doors, token_for


@pytest.fixture
def doors(settings: Any, tmp_path: Path) -> None:
    open_doors(settings, tmp_path / "tls")


@pytest.fixture
def token(doors: None, local_pool: Pool, olga: Any) -> str:
    return token_for(local_pool, olga)


@pytest.fixture
def joined(token: str) -> Newcomer:
    """gpu-07, a machine of the pool this-machine."""
    newcomer = Newcomer()
    answer = newcomer.join(token)
    assert answer.status_code == 201, answer.content
    return newcomer
