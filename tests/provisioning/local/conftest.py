from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_support import Pool

from provisioning.drivers.local.isolation import probe


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    made: list[Pool] = []

    def make(**config: Any) -> Pool:
        made.append(Pool(tmp_path, **config))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


@pytest.fixture
def sandbox() -> None:
    """For tests that are about the sandbox itself."""
    if not probe().bwrap:
        pytest.skip(f"no working bubblewrap here: {probe().reason}")
