from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_support import ENVIRONMENT
from local_support import Pool

from provisioning.drivers.local.isolation import probe


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    made: list[Pool] = []

    def make(folder: str = "", **config: Any) -> Pool:
        made.append(Pool(tmp_path / folder, **config))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture
def sandbox() -> None:
    """Skip unless a sandbox works here."""
    if not probe().bwrap:
        pytest.skip(f"no working bubblewrap here: {probe().reason}")


@pytest.fixture
def notebook_pool(make_pool: Callable[..., Pool]) -> Iterator[Pool]:
    """A pool with the notebook environment; prepared spares end with it."""
    if not (ENVIRONMENT / "bin" / "jupyter-lab").exists():
        pytest.skip(f"no jupyter-lab in {ENVIRONMENT}; run `make up` or set BERTH_TEST_NOTEBOOK_ENV")
    pool = make_pool(environment=str(ENVIRONMENT))
    yield pool
    pool.driver.spare_count = 0
    pool.driver.warm_up(owner=os.getpid())
