"""The services account: shared files, returned files, and when everything stays with root."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from portal.common import passes
from portal.embedded import account, configs
from portal.embedded.account import Account, AccountUnusable
from portal.embedded.doors import Doors
from portal.embedded.environment import Instance, ensure_secrets
from provisioning.service import database_place, program
from provisioning.service.console import Problem

UID = 199_997
REDIS = Path("/bin/true")
CADDY = program.find_program("caddy") or Path("caddy")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives to others")


@pytest.fixture
def own_instance(instance: Instance, tmp_path: Path) -> Iterator[Instance]:
    """An instance before its services start."""
    found = replace(instance, services_uid=UID, passes_dir=tmp_path / "passes")
    for folder in (found.run_dir, found.redis_dir):
        folder.mkdir(parents=True, mode=0o700)
    secrets, _ = ensure_secrets(found.home)
    configs.write(found, secrets)
    database_place.make_folder(found.home)
    yield found


def choose(mine: Instance, environ: dict[str, str], *, redis: Path = REDIS) -> Account | None:
    return account.choose(mine, environ, redis_server=redis, caddy=CADDY)


def account_of(mine: Instance, uid: int) -> Account:
    return Account(mine, {}, uid, REDIS, Doors.for_instance(mine, {}, CADDY))


def database(mine: Instance) -> Path:
    return mine.home / database_place.FOLDER


def owner(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


# -- the setting ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["-1", "999", "root", "2147483647", "1e5"])
def test_invalid_uid_is_reported(text: str, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="BERTH_SERVICES_UID"):
        Instance.from_environ({"BERTH_HOME": str(tmp_path), "BERTH_SERVICES_UID": text})


def test_uid_0_disables_the_services_account(own_instance: Instance) -> None:
    assert choose(replace(own_instance, services_uid=0), {}) is None


def test_without_root_the_user_is_unchanged(own_instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert choose(own_instance, {}) is None
    account.return_ownership(own_instance, Doors.for_instance(own_instance, {}, CADDY))


# -- the trial --------------------------------------------------------------------------------


@root_only
def test_successful_trial_changes_only_its_own_folder(own_instance: Instance) -> None:
    before = {path: owner(path) for path in own_instance.home.rglob("*")}
    found = choose(own_instance, {})
    assert found is not None and found.uid == UID
    after = {path: owner(path) for path in own_instance.home.rglob("*")}
    assert after.pop(own_instance.home / "services") == (UID, UID, 0o700)
    assert after == before


@root_only
@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"DATABASE_URL": "sqlite:////srv/database.sqlite3"}, "is a file"),
        ({"DATABASE_URL": "postgresql:///berth"}, "is a socket"),
        ({"DATABASE_URL": "postgresql://%2Frun%2Fpostgresql/berth"}, "is a socket"),
        ({"BERTH_NODE_UIDS": "199997-201000"}, "is one of BERTH_NODE_UIDS"),
        ({"BERTH_NODE_UIDS": "199998-201000"}, "BERTH_DOORS_UID is in the range of BERTH_NODE_UIDS"),
    ],
)
def test_unusable_folders_of_the_account_are_reported(
    own_instance: Instance, environ: dict[str, str], why: str
) -> None:
    with pytest.raises(AccountUnusable, match=why):
        choose(own_instance, environ)


@root_only
def test_root_only_file_named_by_a_setting_is_reported(own_instance: Instance, tmp_path: Path) -> None:
    token = tmp_path / "elsewhere" / "token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o600)
    with pytest.raises(AccountUnusable, match=f"{token} cannot be used by user {UID}"):
        choose(own_instance, {"BERTH_VAULT_TOKEN_FILE": str(token)})
    token.chmod(0o644)
    assert choose(own_instance, {"BERTH_VAULT_TOKEN_FILE": str(token)}) is not None


@root_only
def test_missing_file_named_by_a_setting_is_reported(own_instance: Instance, tmp_path: Path) -> None:
    """Its creator, such as a Vault agent, may make it readable only by root."""
    with pytest.raises(AccountUnusable, match="does not exist"):
        choose(own_instance, {"BERTH_VAULT_TOKEN_FILE": str(tmp_path / "token")})


@root_only
def test_redis_without_execute_permission_is_reported(own_instance: Instance, tmp_path: Path) -> None:
    redis = tmp_path / "redis-server"
    redis.touch(mode=0o700)
    with pytest.raises(AccountUnusable, match=f"{redis} cannot be run"):
        choose(own_instance, {}, redis=redis)


@root_only
def test_invalid_doors_are_reported(own_instance: Instance) -> None:
    with pytest.raises(AccountUnusable, match="is BERTH_SERVICES_UID"):
        choose(replace(own_instance, doors_uid=UID), {})
    (own_instance.run_dir / "front-door.json").write_text("{")
    with pytest.raises(AccountUnusable, match="config"):
        choose(own_instance, {})


@root_only
def test_caddy_without_execute_permission_is_reported(own_instance: Instance, tmp_path: Path) -> None:
    caddy = tmp_path / "caddy"
    caddy.touch(mode=0o700)
    with pytest.raises(AccountUnusable, match=f"could not start {caddy}: Permission denied"):
        account.choose(own_instance, {}, redis_server=REDIS, caddy=caddy)


@pytest.mark.parametrize("text", ["0", "999", "root"])
def test_invalid_uid_of_doors_is_reported(text: str, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="BERTH_DOORS_UID"):
        Instance.from_environ({"BERTH_HOME": str(tmp_path), "BERTH_DOORS_UID": text})


@root_only
def test_launcher_without_mount_permission_is_reported(
    own_instance: Instance, tmp_path: Path, monkeypatch
) -> None:
    """As in a container without capabilities."""
    launcher = tmp_path / "launcher.py"
    launcher.write_text("raise SystemExit('python cannot be confined: Operation not permitted')")
    monkeypatch.setattr(account, "LAUNCHER", launcher)
    with pytest.raises(AccountUnusable, match="Operation not permitted"):
        choose(own_instance, {})


@root_only
def test_database_that_is_a_symlink_is_refused(own_instance: Instance, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.sqlite3"
    elsewhere.touch()
    database_place.database_file(own_instance.home).symlink_to(elsewhere)
    with pytest.raises(AccountUnusable, match="is a link"):
        choose(own_instance, {})


def test_files_named_by_settings(tmp_path: Path) -> None:
    for name in ("providers.toml", "client", "ca.pem", "token"):
        (tmp_path / name).touch()
    (tmp_path / "providers.toml").write_text(
        f'client_secret = "file:{tmp_path}/client"\nca_file = "{tmp_path}/ca.pem"\nissuer = "https://x/"\n'
    )
    environ = {
        "BERTH_SIGN_IN_PROVIDERS": str(tmp_path / "providers.toml"),
        "BERTH_OIDC_CLIENT_SECRET": f"file:{tmp_path}/client",
        "BERTH_VAULT_TOKEN_FILE": str(tmp_path / "token"),
        "BERTH_OUTGOING_CA_FILE": str(tmp_path / "missing"),
        "BERTH_HOMES_DIR": str(tmp_path),
    }
    names = ["ca.pem", "client", "missing", "providers.toml", "token"]
    assert account.named_files(environ) == [tmp_path / name for name in names]


# -- who sees what ----------------------------------------------------------------------------


def test_each_service_gets_only_its_secrets(own_instance: Instance) -> None:
    found = account_of(own_instance, UID)
    copied = {name: {path.name for path in found.needs(name).copies} for name in account.CONFINED}
    assert copied.pop("redis") == {"redis.conf", "redis.acl"}
    for name, names in copied.items():
        assert not names & {"redis_node", "node_key"}, name
        assert {"secret_key", "control_key", "redis_control"} <= names
        assert ("authority.key" in names) == (name in {"web", "control"}), names
    assert found.needs("redis").writes == (own_instance.redis_dir,)


# -- what changes hands -----------------------------------------------------------------------


@root_only
def test_database_is_shared_and_stays_owned_by_root(own_instance: Instance) -> None:
    (database(own_instance) / database_place.NAME).touch(mode=0o600)
    found = account_of(own_instance, UID)
    found.grant_ownership()
    found.share()
    assert owner(database(own_instance)) == (0, UID, 0o1770)
    assert owner(database(own_instance) / database_place.NAME) == (0, UID, 0o660)
    assert owner(own_instance.redis_dir)[:2] == (UID, UID) and owner(own_instance.passes_dir) == (
        UID,
        UID,
        0o750,
    )
    assert owner(own_instance.local_dir) == (0, own_instance.doors_uid, 0o710)
    assert owner(own_instance.local_dir / ".gateway") == (
        own_instance.doors_uid,
        own_instance.doors_uid,
        0o711,
    )
    assert owner(own_instance.home / "secrets")[0] == owner(own_instance.run_dir)[0] == 0
    # SQLite's files beside it, created by root, are shared too.
    with sqlite3.connect(database(own_instance) / database_place.NAME) as opened:
        opened.execute("PRAGMA journal_mode=WAL")
        opened.execute("CREATE TABLE word (word TEXT)")
        opened.commit()
        assert owner(database(own_instance) / f"{database_place.NAME}-wal") == (0, UID, 0o660)
        assert owner(database(own_instance) / f"{database_place.NAME}-shm") == (0, UID, 0o660)
    opened.close()


@root_only
def test_symlinks_beside_the_database_are_removed_and_not_followed(
    own_instance: Instance, tmp_path: Path
) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    for path in (target, other):
        path.write_text("root's")
        path.chmod(0o600)
    beside = [database(own_instance) / f"{database_place.NAME}{end}" for end in ("-wal", "-shm", "-journal")]
    beside[0].symlink_to(target)
    os.link(other, beside[1])
    os.mkfifo(beside[2])
    account.share_database(database(own_instance), UID)
    assert not any(os.path.lexists(path) for path in beside)
    assert owner(target) == owner(other) == (0, 0, 0o600) and target.read_text() == "root's"


@root_only
def test_redis_data_is_dropped_on_return_to_root(own_instance: Instance, tmp_path: Path) -> None:
    """Root's Redis would follow a symlink left by the account."""
    (own_instance.redis_dir / "appendonlydir").mkdir()
    found = account_of(own_instance, UID)
    found.grant_ownership()
    found.share()
    assert owner(own_instance.redis_dir / "appendonlydir")[0] == UID
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (own_instance.redis_dir / "link").symlink_to(outside)
    account.return_ownership(own_instance, Doors.for_instance(own_instance, {}, CADDY))
    assert owner(own_instance.redis_dir) == (0, 0, 0o700) and not list(own_instance.redis_dir.iterdir())
    assert owner(own_instance.passes_dir) == (0, 0, 0o700)
    assert owner(database(own_instance)) == (0, 0, 0o700)
    assert owner(own_instance.local_dir) == (0, 0, 0o700) and owner(own_instance.local_dir / ".gateway") == (
        0,
        0,
        0o711,
    )
    assert (outside / "kept").exists()


@root_only
def test_another_uid_takes_over_the_folders(own_instance: Instance) -> None:
    account_of(own_instance, UID).grant_ownership()
    (own_instance.redis_dir / "data").touch()
    (own_instance.passes_dir / ("a" * 64)).mkdir()
    (own_instance.passes_dir / "of others").touch()
    account_of(own_instance, UID - 1).grant_ownership()
    assert owner(own_instance.redis_dir)[0] == owner(own_instance.passes_dir)[0] == UID - 1
    assert [path.name for path in own_instance.passes_dir.iterdir()] == ["of others"]


@root_only
def test_symlink_in_place_of_the_passes_folder_is_not_followed(
    own_instance: Instance, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    own_instance.passes_dir.symlink_to(outside)
    account_of(own_instance, UID).grant_ownership()
    assert owner(outside)[0] == 0


@root_only
def test_deleting_passes_follows_no_symlink(own_instance: Instance, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", own_instance.passes_dir
    assert folder is not None
    (outside / "key").mkdir(parents=True)
    folder.symlink_to(outside)
    with pytest.raises(OSError, match=r"directory|symbolic"):
        account.delete_passes(folder, "key")
    assert (outside / "key").exists()
    folder.unlink()
    folder.mkdir()
    (folder / "key").symlink_to(outside)
    account.delete_passes(folder, "key")
    assert (outside / "key").exists()


def test_pausing_passes_follows_no_symlink(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "passes"
    outside.mkdir()
    (outside / "1234").touch()
    folder.mkdir()
    key = folder / passes.key_of("secret")
    key.symlink_to(outside)
    passes.pause(str(folder), "secret")
    assert (outside / "1234").exists()
    key.unlink()
    key.mkdir()
    (key / "1234").symlink_to(outside)
    passes.pause(str(folder), "secret")
    assert not list(key.iterdir()) and (outside / "1234").exists()


# -- where the database is --------------------------------------------------------------------


def test_database_is_in_the_folder_of_the_instance(tmp_path: Path) -> None:
    inside = tmp_path / database_place.FOLDER / database_place.NAME
    assert database_place.make_folder(tmp_path) == database_place.database_file(tmp_path) == inside
    assert stat.S_IMODE((tmp_path / database_place.FOLDER).stat().st_mode) == 0o700


def test_file_beside_the_program_is_shared_without_its_folder(own_instance: Instance, tmp_path: Path) -> None:
    """Otherwise everything in the folder would be visible."""
    found = account_of(own_instance, UID)
    assert found._readable_path(own_instance.home.parent / "token") == own_instance.home.parent / "token"
    assert found._readable_path(own_instance.home / "run" / "token") == own_instance.home / "run" / "token"
    assert found._readable_path(tmp_path / "elsewhere" / "token") == tmp_path / "elsewhere"
