"""Repositories are cloned by the Git of the machine inside the sandbox and network of the workspace."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
from local_support import Pool, ask

from provisioning.drivers.local.isolation import probe
from provisioning.errors import InvalidSpec
from provisioning.types import CheckoutKind, CheckoutSpec, EgressLimit
from tests.instance import eventually

REPOSITORY = CheckoutSpec(CheckoutKind.REPOSITORY, "https://git.example/berth/lib", timeout_s=30)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")
def test_unreachable_repository_is_skipped_and_the_workspace_runs(
    make_pool: Callable[..., Pool], sandbox: None
) -> None:
    if probe().network is None:
        pytest.skip(probe().warning)
    pool = make_pool()
    spec = replace(pool.spec(egress=(EgressLimit("none"),)), checkouts=(REPOSITORY,))
    seen = pool.run(spec)
    log = pool.driver._dir(spec.ref).run / "app.log"
    eventually(
        lambda: (log.exists() and "repository failed egress" in log.read_text()) or None,
        limit_s=60,
        what="the failure is in the log",
    )
    assert ask(seen, "os.environ['GIT_CONFIG_SYSTEM']") == "/run/berth/git/config"
    assert ask(seen, "oct(os.stat('/run/berth/git').st_mode & 0o777)") == "0o500"
    assert ask(seen, "sorted(name for name in os.listdir(os.environ['HOME']) if 'lib' in name)") == []


def test_node_refuses_an_invalid_repository_address(
    make_pool: Callable[..., Pool],
) -> None:
    pool = make_pool()
    for url in ("ext::sh", "file:///etc", "-x", "https://a:b@h/c"):
        with pytest.raises(InvalidSpec):
            pool.driver.validate(replace(pool.spec(), checkouts=(replace(REPOSITORY, url=url),)))
