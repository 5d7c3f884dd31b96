"""More shared fixtures: users with site roles, a node with eight GPUs, providers, and services."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.factories import FlavorFactory, UserFactory, local_pool_with, node_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django.fixtures import SettingsWrapper

    from portal.fleet.inventory.models import Pool
    from portal.people.accounts.models import User
    from tests.instance import Berth
    from tests.sites import Site
    from tests.vault_server import VaultServer


@pytest.fixture
def ada(db: None) -> User:
    """Administrator; in no team."""
    return UserFactory(username="ada", is_superuser=True)


@pytest.fixture
def una(db: None) -> User:
    """Auditor; in no team."""
    return UserFactory(username="una", is_auditor=True)


@pytest.fixture
def fay(db: None) -> User:
    """In no team, with no role."""
    return UserFactory(username="fay")


@pytest.fixture
def petra(db: None) -> User:
    """Approver; in no team, and no operator."""
    return UserFactory(username="petra", is_approver=True)


@pytest.fixture
def eight(catalog: None, shared_site: Site) -> Pool:
    """A node with 8 × H100; the flavors gpu-1 and gpu-2 have one and two GPUs."""
    return shared_site.eight or machine_of_eight()


def machine_of_eight() -> Pool:
    """The pool and flavors of the fixture `eight`."""
    for count in (1, 2):
        FlavorFactory(slug=f"gpu-{count}", accelerator_count=count, accelerator_model="NVIDIA H100 80GB HBM3")
    pool = local_pool_with(node_info(gpus=8, cpu_milli=64_000, memory_mib=262_144))
    # Nothing would answer preflight checks.
    pool.hand_out_max_age_hours = 0
    pool.save(update_fields=["hand_out_max_age_hours"])
    return pool


PROVIDER = """
[[provider]]
kind = "oidc"
id = "corp"
name = "Example Corp"
issuer = "http://127.0.0.1:1"
client_id = "berth"
"""


@pytest.fixture
def configure(settings: SettingsWrapper, tmp_path: Path) -> Callable[[str], None]:
    """Set the sign-in providers from a TOML text; each call replaces the previous ones."""
    count = 0

    def write(text: str) -> None:
        nonlocal count
        count += 1
        path = tmp_path / f"providers-{count}.toml"
        path.write_text(text)
        settings.BERTH_SIGN_IN_PROVIDERS = str(path)

    return write


@pytest.fixture
def providers(configure: Callable[[str], None]) -> None:
    """One sign-in provider, corp."""
    configure(PROVIDER)


@pytest.fixture(scope="session")
def vault() -> Iterator[VaultServer]:
    """The Vault of the shared instance; a test that needs it starts it.

    Its token file exists from the beginning, in a folder that others can enter, as the services would run as
    root otherwise.
    """
    from tests.vault_server import VaultServer

    with tempfile.TemporaryDirectory(prefix="berth-vault-") as folder:
        Path(folder).chmod(0o755)
        server = VaultServer(Path(folder))
        server.token_file.touch()
        yield server
        server.end()


@pytest.fixture(scope="session")
def shared_berth(tmp_path_factory: pytest.TempPathFactory, vault: VaultServer) -> Iterator[Berth]:
    """One instance for all files marked `xdist_group("e2e")`, which run in one process, one by one.

    Each file leaves the machine free. Leases and heartbeats are shorter than the defaults of 20 and 15 s, so
    that tests wait less for lost messages.
    """
    from tests import instance

    with instance.running(
        tmp_path_factory.mktemp("shared"),
        environment=instance.notebook_environment(),
        BERTH_NODE_LEASE_S="8",
        BERTH_HEARTBEAT_S="4",
        BERTH_VAULT_ADDR=vault.address,
        BERTH_VAULT_TOKEN_FILE=str(vault.token_file),
    ) as berth:
        yield berth
    assert berth.instance.passes_dir is not None
    assert not berth.instance.passes_dir.exists()
