"""A package index that fails during a build, in real processes.

The index has its own network, as builds cannot reach this machine. It dies during a package, falls silent,
closes the connection, or returns an error. The time of the next retry is moved instead of awaited.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from provisioning.drivers.local import isolation
from tests import instance
from tests.e2e.build_site import LIMIT_S, TEMPLATE, Site
from tests.e2e.second_machine import Network, network
from tests.instance import Api, eventually
from tests.provisioning.environments import package_server
from tests.provisioning.environments.package_index import PackageFolder

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("builds-index-gone"),
    pytest.mark.thorough("a Berth and an index of its own; `make test` reads uv's words"),
]
PORT = 8000
LARGE = 1 << 20
NEXT_TRY = """
import django
django.setup()
from django.utils import timezone
from portal.catalog.environments import upkeep
from portal.catalog.environments.models import EnvironmentVersion
EnvironmentVersion.objects.filter(retry_at__isnull=False).update(retry_at=timezone.now())
upkeep.sweep()
"""
# Prevent the automatic retry a minute after the failure.
NOT_YET = """
import django
django.setup()
from datetime import timedelta
from django.utils import timezone
from portal.catalog.environments.models import EnvironmentVersion
later = timezone.now() + timedelta(days=1)
EnvironmentVersion.objects.filter(retry_at__isnull=False).update(retry_at=later)
"""


class Index:
    """A package index at `url`, in its own network."""

    def __init__(self, folder: Path, wire: Network) -> None:
        self.packages = PackageFolder(folder)
        self.packages.wheel("pip")
        self.url = f"http://{wire.there}:{PORT}/simple"
        program = [sys.executable, "-I", "-S", package_server.__file__, str(folder), wire.there, str(PORT)]
        self._argv = wire.inside(*program)
        self._process: subprocess.Popen[bytes] | None = None
        self.does("serve")

    def start(self) -> None:
        self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL)
        eventually(self._answers, limit_s=30, what="the index answers")

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/pip/", trust_env=False, timeout=5).is_success
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def does(self, word: str) -> None:
        """Set what happens to packages requested from now on."""
        (self.packages.folder / "asked").write_text("")
        (self.packages.folder / "does").write_text(word)

    def in_the_middle(self) -> None:
        """Wait until a package is requested that is not served."""
        asked = self.packages.folder / "asked"
        eventually(lambda: asked.stat().st_size > 0, limit_s=LIMIT_S, what="a package is asked for")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    if not isolation.probe().bwrap:
        pytest.skip("no sandbox works here")
    with network() as wire:
        found = Index(tmp_path_factory.mktemp("index"), wire)
        found.start()
        yield found
        found.kill()


@pytest.fixture(scope="module")
def site(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    settings = {
        "BERTH_NODE_PACKAGE_INDEX": index.url, "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "",
        "UV_FIND_LINKS": "", "BERTH_NODE_PACKAGE_TIMEOUT_S": "10", "BERTH_NODE_PACKAGE_RETRIES": "0",
        "BERTH_DISK_RESERVE_MIB": "0",
    }  # fmt: skip
    with instance.running(tmp_path_factory.mktemp("gone"), environment=None, **settings) as berth:
        admin, ben = Api(berth, berth.manage("create_token", "admin")), berth.api("ben")
        admin.json("POST", "templates", TEMPLATE)
        yield Site(berth, index.packages, admin, ben)
        admin.close()
        ben.close()


WAYS = {
    "dies": ("hang", ""),
    "silent": ("hang", "due to network timeout"),
    "cut": ("cut", "end of file before message length reached"),
    "refused": ("refuse", "500 Internal Server Error"),
}
"""How it goes: what it does then, and what is said of it. One that dies may be asked again first."""


def test_interrupted_build_runs_once_after_the_index_returns(site: Site, index: Index) -> None:
    before = site.holding()
    for slug, (does, said) in WAYS.items():
        site.packages.wheel(slug, files={f"{slug}.bin": b"\0" * LARGE})
        index.does(does)
        site.ask(slug, slug)
        index.in_the_middle()
        site.cannot_be_started(slug)
        if slug == "dies":
            index.kill()
        is_failed(site, slug, said)
        site.berth.run("-c", NOT_YET, DJANGO_SETTINGS_MODULE="portal.settings")
        if slug == "dies":
            index.start()
    assert site.holding() == before, "an environment is there whole or not at all"

    index.does("serve")
    site.berth.run("-c", NEXT_TRY, DJANGO_SETTINGS_MODULE="portal.settings")
    for slug in WAYS:
        assert site.ended(slug)["state"] == "ready", site.log(slug)
        assert sorted(build["state"] for build in site.builds(slug)) == ["failed", "ready"]
    assert site.holding() - before == {site.digest(slug) for slug in WAYS}
    site.is_ready_and_starts("dies", "dies")


def is_failed(site: Site, slug: str, said: str) -> None:
    """The failure names the index, the error and the next step; nothing of the build is left."""
    build = site.ended(slug)
    assert (build["state"], build["failure"]["code"]) == ("failed", "index_unreachable"), site.log(slug)
    assert said in build["message"] and "retries automatically" in build["next_action"]
    line = build["failure"]["params"]["log_line"]
    assert line in " ".join(site.log(slug).split())
    (version,) = site.admin.json("GET", f"environments/{slug}/versions")["results"]
    assert version["state"] == "failed" and version["retry_at"], "it is nobody's list that is at fault"
    assert not list(site.store.building.iterdir())
    site.cannot_be_started(slug)
