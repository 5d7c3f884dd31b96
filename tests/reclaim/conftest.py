"""A running workspace."""

from __future__ import annotations

import pytest

from portal.workspaces.models import Workspace
from tests.workspaces.helpers import run_until_ready


@pytest.fixture
def running(make, alice, local_pool, sent) -> Workspace:
    workspace: Workspace = make(alice)
    run_until_ready(sent, workspace)
    workspace.refresh_from_db()
    return workspace
