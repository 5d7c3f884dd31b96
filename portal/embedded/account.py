"""The unprivileged account that runs the services if root starts them (docs/adr/0069-services-account.md).

Only the node worker needs root, to create users, networks and sandboxes. All other services read the program
and their own secrets, and write the database and a few folders; doors have a separate account (`doors.py`).
Without these accounts, everything runs as root.

Root never follows links in files of the account. Root owns the database's folder and file: the account can
write both, but cannot replace them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from portal.embedded.doors import Doors
from portal.embedded.environment import Instance
from portal.fleet.machines import certificates
from provisioning import workspace_uids
from provisioning.handover import hand_over, owner_of, renew
from provisioning.service import database_place, trial
from provisioning.service.confinement import ServiceNeeds, plan
from provisioning.service.door_account import AccountUnusable
from provisioning.service.environ import ROOT, bare_environ
from provisioning.service.program import Program, python_places
from provisioning.service.supervisor import LAUNCHER

CONFINED = ("redis", "web", "gateway", "control", "beat")
HAND_OVER_LIMIT_S = 60.0
OF_THE_NODE = frozenset({"redis_node", "node_key"})
"""Files that only the node worker may read, and Redis's hash of its password."""
SIGNING = frozenset({"web", "control"})
"""Services that use the authority's key, to sign certificates of joining machines."""
SHARING, SHARING_UMASK = "gateway", 0o027
"""The service that stores passes for the front door, which is in its group."""
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_FILE_VARIABLES = frozenset({"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"})
_NAMED = re.compile(r"(?:file:)?(/[^\s\"']+)")
_OF_PASSES = re.compile("[0-9a-f]{64}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Account:
    """The account `uid` of an instance's services."""

    instance: Instance
    environ: Mapping[str, str]
    uid: int
    redis_server: Path
    doors: Doors

    @property
    def folder(self) -> Path:
        """Private folder with beat's schedule; also the home folder for libraries that need one."""
        return self.instance.home / "services"

    def confine(self, program: Program) -> Program:
        """Return the program confined to the account if it is one of its services."""
        if program.name not in CONFINED:
            return self.doors.confine(program)
        environ = {key: value for key, value in program.environ.items() if key not in _TEMPORARY}
        return replace(
            program,
            environ={**environ, "HOME": str(self.folder)},
            umask=SHARING_UMASK if program.name == SHARING else program.umask,
            confinement=plan(self.uid, self.needs(program.name)),
        )

    def needs(self, name: str) -> ServiceNeeds:
        """Return the paths that the service `name` may read and write."""
        instance = self.instance
        folders = (instance.home, instance.homes_dir, instance.tls_dir)
        covered = tuple(folder for folder in folders if folder.is_dir())
        if name == "redis":
            return ServiceNeeds(
                reads=(self.redis_server, ROOT),
                writes=(instance.redis_dir,),
                copies=(instance.run_dir / "redis.conf", instance.run_dir / "redis.acl"),
                covered=covered,
            )
        secrets = sorted(set(_names(instance.home / "secrets")) - OF_THE_NODE)
        authority = (certificates.AUTHORITY_FILE, certificates.AUTHORITY_KEY_FILE) if name in SIGNING else ()
        passes = [instance.passes_dir] if instance.passes_dir is not None else []
        # These folders may be missing.
        passes, static = (
            [folder for folder in folders if folder.is_dir()]
            for folders in (passes, [instance.home / "static"])
        )
        return ServiceNeeds(
            reads=(*python_places(), *static, *self._named_paths()),
            writes=(self.folder, instance.home / database_place.FOLDER, *passes),
            copies=(
                *(instance.home / "secrets" / secret for secret in secrets),
                instance.keys_dir,
                *(instance.tls_dir / file_name for file_name in authority),
            ),
            covered=covered,
        )

    def _named_paths(self) -> list[Path]:
        return [self._readable_path(file) for file in named_files(self.environ) if file.exists()]

    def _readable_path(self, file: Path) -> Path:
        """Return the file's folder, as renewal may replace the file; or the file, if next to Berth's."""
        folder, home = file.parent, self.instance.home
        above = any(path.is_relative_to(folder) for path in (home, *python_places()))
        return file if above or folder.is_relative_to(home) else folder

    def grant_ownership(self) -> None:
        """Give the account ownership of the files that it writes. No service may run. Raises `OSError`."""
        instance = self.instance
        if owner_of(instance.redis_dir) not in {0, self.uid}:
            renew(instance.redis_dir, self.uid)
        hand_over(instance.redis_dir, self.uid, limit_s=HAND_OVER_LIMIT_S)
        _grant_passes(instance.passes_dir, self.uid)
        self.doors.grant_ownership()

    def share(self) -> None:
        """Let the account write the database and read static files, which root owns. Raises `OSError`."""
        if not self.environ.get("DATABASE_URL"):
            share_database(self.instance.home / database_place.FOLDER, self.uid)
        static = self.instance.home / "static"
        for folder, _, names in os.walk(static):
            Path(folder).chmod(0o755)
            for name in names:
                Path(folder, name).chmod(0o644)


def choose(
    instance: Instance, environ: Mapping[str, str], *, redis_server: Path, caddy: Path
) -> Account | None:
    """Return the tested account of the services; None if they run as the current user.

    Changes nothing outside the account's private folder. Raises `AccountUnusable`.
    """
    if os.geteuid() != 0 or instance.services_uid == 0:
        return None
    doors = Doors.for_instance(instance, environ, caddy)
    account = Account(instance, environ, instance.services_uid, redis_server, doors)
    if workspace_uids.is_for_workspaces(account.uid, environ):
        raise AccountUnusable(f"BERTH_SERVICES_UID is one of {workspace_uids.VARIABLE}; choose another")
    try:
        _check_database(instance, environ)
        for file in named_files(environ):
            if not file.exists():
                # A process that creates the file later may make it readable only by root.
                raise AccountUnusable(f"{file}, named in a setting, does not exist")
        if owner_of(account.folder) != account.uid:
            renew(account.folder, account.uid)
        _try(account)
        doors.attempt()
    except OSError as error:
        raise AccountUnusable(str(error)) from error
    return account


def _check_database(instance: Instance, environ: Mapping[str, str]) -> None:
    url = environ.get("DATABASE_URL", "")
    folder = instance.home / database_place.FOLDER
    for path in (database_place.database_file(instance.home), folder, instance.redis_dir):
        if path.is_symlink():
            raise AccountUnusable(f"{path} is a link; replace it with its target")
    if not url:
        return
    if urlsplit(url).scheme == "sqlite":
        raise AccountUnusable("DATABASE_URL is a file; unset it to use the file in BERTH_HOME")
    if not urlsplit(url).hostname or "host=/" in url or "%2f" in url.lower():
        raise AccountUnusable(
            "DATABASE_URL is a socket, which checks users of this machine; use a network address"
        )
    personal = Path(environ.get("HOME") or "/")
    for name in (".pgpass", ".pg_service.conf", ".postgresql"):
        if (personal / name).exists():
            raise AccountUnusable(f"only root can read {personal / name}; set the password in DATABASE_URL")


def _try(account: Account) -> None:
    """Test as the account whether it can access everything that services need. Raises `AccountUnusable`."""
    web, redis = account.needs("web"), account.needs("redis")
    needs = ServiceNeeds(
        reads=(*web.reads, *redis.reads),
        # The other folders do not belong to the account yet.
        writes=(account.folder,),
        copies=(*web.copies, *redis.copies),
        covered=web.covered,
    )
    question = {
        "reads": [str(path) for path in (*web.copies, *redis.copies, *named_files(account.environ))],
        "runs": str(account.redis_server),
        "writes": [str(account.folder)],
        "uid": account.uid,
    }
    problem = trial.failure_of(
        (sys.executable, "-B", "-m", "portal.embedded.account_trial", json.dumps(question)),
        confinement=plan(account.uid, needs),
        environ={**bare_environ(account.environ), "HOME": str(account.folder)},
        folder=ROOT,
        launcher=LAUNCHER,
    )
    if problem:
        raise AccountUnusable(problem)


def return_ownership(instance: Instance, doors: Doors) -> None:
    """Return ownership of files that services write to root. Raises `OSError`.

    Deletes Redis's data instead, because root must not read files that the account wrote.
    """
    if os.geteuid() != 0:
        return
    if owner_of(instance.redis_dir) not in {None, 0}:
        renew(instance.redis_dir, 0)
    if instance.passes_dir is not None and instance.passes_dir.exists():
        _grant_passes(instance.passes_dir, 0)
    doors.return_ownership()
    database = instance.home / database_place.FOLDER
    if database.is_dir() and not database.is_symlink() and database.stat().st_gid != 0:
        share_database(database, 0)


def share_database(folder: Path, uid: int) -> None:
    """Let the group `uid` write the database in `folder`, but not replace it; 0 restricts access to root.

    Removes links and other special files next to it, which the account may have created. Raises `OSError`.
    """
    place = os.open(folder, _FOLDER)
    try:
        os.fchown(place, 0, uid)
        # Sticky, so that group members cannot rename or remove other users' files.
        os.fchmod(place, 0o1770 if uid else 0o700)
        for name in (
            database_place.NAME,
            *(database_place.NAME + end for end in database_place.COMPANION_SUFFIXES),
        ):
            _share(place, name, uid)
    finally:
        os.close(place)


def _share(place: int, name: str, uid: int) -> None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    except FileNotFoundError:
        return
    except OSError:
        if name == database_place.NAME:
            raise
        os.unlink(name, dir_fd=place)
        return
    try:
        status = os.fstat(file)
        # Only root can have created the database file itself.
        if name != database_place.NAME and (not stat.S_ISREG(status.st_mode) or status.st_nlink != 1):
            os.unlink(name, dir_fd=place)
            return
        os.fchown(file, 0, uid)
        os.fchmod(file, 0o660 if uid else 0o600)
    finally:
        os.close(file)


def _grant_passes(folder: Path | None, uid: int) -> None:
    """Prepare an empty folder of passes for `uid`. If that fails, every request goes to forward-auth."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        opened = os.open(folder, _FOLDER)
        try:
            if os.fstat(opened).st_uid != uid:
                for name in os.listdir(opened):  # noqa: PTH208
                    if _OF_PASSES.fullmatch(name):
                        shutil.rmtree(name, ignore_errors=True, dir_fd=opened)
                os.fchown(opened, uid, uid)
            # The front door is in this group.
            os.fchmod(opened, 0o750 if uid else 0o700)
        finally:
            os.close(opened)


def delete_passes(folder: Path, key: str) -> None:
    """Remove an instance's passes from a folder that the account may own. Raises `OSError`."""
    opened = os.open(folder, _FOLDER)
    try:
        shutil.rmtree(key, ignore_errors=True, dir_fd=opened)
    finally:
        os.close(opened)
    with contextlib.suppress(OSError):
        folder.rmdir()


def named_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files and folders that settings and the sign-in providers file name."""
    texts = [
        value
        for key, value in environ.items()
        if key in _FILE_VARIABLES
        or (key.startswith("BERTH_") and (key.endswith("_FILE") or value.startswith("file:")))
    ]
    if providers := environ.get("BERTH_SIGN_IN_PROVIDERS"):
        texts.append(providers)
        with contextlib.suppress(OSError, UnicodeDecodeError):
            texts += re.findall(r"\"((?:file:)?/[^\"]+)\"", Path(providers).read_text())
    paths = [Path(match[1]) for text in texts if (match := _NAMED.fullmatch(text))]
    return sorted(set(paths))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []
