"""Passes in a complete instance: a gateway process without notifications admits no one for long."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal.common.passes import key_of
from tests.instance import Berth, eventually
from tests.provisioning.local.local_support import Pool, ask

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("e2e")]


@pytest.fixture(scope="module")
def berth(shared_berth: Berth) -> Berth:
    return shared_berth


@pytest.fixture
def entered(berth: Berth) -> Iterator[str]:
    """A workspace entered with a pass."""
    api = berth.api("ada")
    workspace = api.create("files", "tiny")["id"]
    api.wait(workspace, "running")
    eventually(
        lambda: berth.enter(workspace, berth.tokens["ada"]) == 200 and passes(berth),
        limit_s=20,
        what="a pass",
    )
    yield workspace
    api.act(workspace, "delete")
    api.wait(workspace, "terminated", limit_s=30)
    api.close()


def home(berth: Berth) -> Path:
    folder = berth.instance.passes_dir
    assert folder is not None
    return folder / key_of(berth.secret("gateway_secret"))


def passes(berth: Berth) -> list[Path]:
    return list(home(berth).glob("held-*/*/*"))


def held_passes(berth: Berth) -> set[str]:
    return {path.name for path in home(berth).glob("held-*")}


def seconds(berth: Berth) -> list[int]:
    return [int(path.name) for path in home(berth).glob("[0-9]*")]


def test_folder_is_unreadable_for_others(berth: Berth, entered: str) -> None:
    folder = berth.instance.passes_dir
    assert folder is not None
    services = berth.instance.services_uid
    # Only the front door is in the group of the services (`test_services_account.py`).
    expected = (services, services, 0o750) if os.geteuid() == 0 else (os.geteuid(), os.getegid(), 0o700)
    for path in (folder, home(berth), *home(berth).glob("held-*")):
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == expected


@contextlib.contextmanager
def stopped(berth: Berth) -> Iterator[None]:
    """Suspend the gateway process."""
    pid = berth.services()["gateway"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        # The supervisor may have killed it meanwhile.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.thorough("waits for leases")
def test_process_without_notifications_admits_no_one(berth: Berth, entered: str) -> None:
    token = berth.tokens["ada"]
    with stopped(berth):
        # Only this second and the next one are valid.
        assert max(seconds(berth), default=0) <= int(time.time()) + 1
        eventually(lambda: berth.enter(entered, token) != 200, limit_s=20, what="no pass counts")
        assert passes(berth)
        assert berth.enter(entered, token) != 200
    eventually(lambda: berth.enter(entered, token) == 200, limit_s=60, what="it is entered again")


def test_killed_gateway_process_leaves_no_valid_pass(berth: Berth, entered: str) -> None:
    before = held_passes(berth)
    os.kill(berth.services()["gateway"]["pid"], signal.SIGKILL)
    assert max(seconds(berth), default=0) <= int(time.time()) + 1
    eventually(
        lambda: (
            berth.enter(entered, berth.tokens["ada"]) == 200
            and passes(berth)
            and not before & held_passes(berth)
        ),
        limit_s=60,
        what="it is entered again",
    )


REVOKE = """
import sys, django
django.setup()
from portal.people.accounts import tokens
from portal.people.accounts.models import ApiToken
from portal.people.accounts.token_lookup import digest_of
row = ApiToken.objects.get(digest=digest_of(sys.argv[1]))
tokens.revoke_token(actor=row.owner, token_id=row.pk)
"""


@pytest.mark.thorough("waits for leases")
def test_revocation_during_an_outage_applies_afterwards(berth: Berth, entered: str) -> None:
    token = berth.manage("create_token", "ada")
    eventually(lambda: berth.enter(entered, token) == 200 and passes(berth), limit_s=20, what="a pass")
    with stopped(berth):
        variables = {"BERTH_PASSES_DIR": str(berth.instance.passes_dir)}
        berth.run("-c", REVOKE, token, DJANGO_SETTINGS_MODULE="portal.settings", **variables)
        # The revoking process applies it at once, whatever the gateway process does.
        assert seconds(berth) == []
        assert berth.enter(entered, token) != 200
    for _ in range(10):
        assert berth.enter(entered, token) in (0, 401, 502)
    eventually(lambda: berth.enter(entered, token) == 401, limit_s=60, what="it is refused")


def test_passes_are_not_visible_in_a_workspace(tmp_path: Path) -> None:
    """It lists its own shared memory and looks for the folder."""
    folder = Path("/dev/shm") / f"berth-test-{os.getpid()}"
    folder.mkdir(mode=0o700)
    pool = Pool(tmp_path)
    try:
        seen = pool.run(pool.spec())
        assert ask(seen, "__import__('os').listdir('/dev/shm')") == []
        assert ask(seen, f"__import__('os').path.exists({str(folder)!r})") is False
    finally:
        pool.close()
        folder.rmdir()
