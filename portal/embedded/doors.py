"""The account of the front door and of the doors for machines (docs/adr/0076-door-account.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from portal.embedded.environment import Instance
from portal.fleet.machines import certificates
from provisioning.handover import owner_of, renew
from provisioning.service import door_account, door_uid
from provisioning.service.confinement import ServiceNeeds
from provisioning.service.door_account import DoorAccount
from provisioning.service.program import Program, python_places

FRONT_DOOR, NODES_DOOR, NODES_GUARD, REDIS_DOOR = "front-door", "nodes-door", "nodes-guard", "redis-door"
DOORS = (FRONT_DOOR, NODES_DOOR, NODES_GUARD, REDIS_DOOR)
FRONT_CONFIG, NODES_CONFIG = "front-door.json", "nodes-door.json"


@dataclass(frozen=True, slots=True)
class Doors:
    """The doors of an instance under a separate account. `services` is the services' account."""

    instance: Instance
    environ: Mapping[str, str]
    account: DoorAccount
    services: int

    @classmethod
    def for_instance(cls, instance: Instance, environ: Mapping[str, str], caddy: Path) -> Doors:
        folders = (instance.home, instance.homes_dir, instance.tls_dir)
        covered = tuple(folder for folder in folders if folder.is_dir())
        account = DoorAccount(instance.doors_uid, instance.local_dir, caddy, covered)
        return cls(instance, environ, account, instance.services_uid)

    def confine(self, program: Program) -> Program:
        """Return the program confined to the account if it is a door."""
        if program.name not in DOORS:
            return program
        ports = () if program.port is None else (program.port,)
        # The gateway process stores passes only for the front door.
        groups = (self.services,) if program.name == FRONT_DOOR and self.instance.passes_dir else ()
        return self.account.confine(program, self.needs(program.name), ports=ports, groups=groups)

    def needs(self, name: str) -> ServiceNeeds:
        """Return the paths that the listener process `name` may read and write."""
        instance, account = self.instance, self.account
        tls, sockets = instance.tls_dir, instance.door_socket_dir
        if name == FRONT_DOOR:
            needs = account.needs(self._files_of_front(), self.environ)
            passes = [instance.passes_dir] if instance.passes_dir and instance.passes_dir.is_dir() else []
            return ServiceNeeds(
                reads=(*needs.reads, *passes, *python_places()),
                writes=needs.writes,
                copies=needs.copies,
                covered=needs.covered,
            )
        if name == NODES_DOOR:
            folder = instance.doors_dir / "tls" if instance.tls_apart else tls
            files = (instance.doors_dir / NODES_CONFIG, *_pair(folder, NODES_DOOR))
            return account.caddy_needs(files, self.environ, writes=(sockets,))
        if name == NODES_GUARD:
            return ServiceNeeds(reads=(*python_places(), sockets), covered=account.covered)
        return ServiceNeeds(reads=python_places(), copies=_pair(tls, NODES_DOOR), covered=account.covered)

    def attempt(self) -> None:
        """Test whether the doors could run as the account. Changes nothing. Raises `AccountUnusable`."""
        if self.account.uid == self.services:
            raise door_account.AccountUnusable(f"{door_uid.VARIABLE} is BERTH_SERVICES_UID; choose another")
        instance = self.instance
        ports = [instance.port]
        if instance.nodes_address:
            ports += [instance.nodes_port, instance.redis_door_port]
        config = instance.run_dir / FRONT_CONFIG
        self.account.attempt(config, self._files_of_front(), self.environ, ports)

    def grant_ownership(self) -> None:
        """Give the account ownership of the files that the doors write. Nothing may run. Raises `OSError`."""
        self.account.grant_access()
        self._grant_sockets(self.account.uid)

    def return_ownership(self) -> None:
        """Return ownership to root. Raises `OSError`."""
        door_account.restrict_sockets(self.instance.local_dir)
        self._grant_sockets(0)

    def _grant_sockets(self, uid: int) -> None:
        folder = self.instance.door_socket_dir
        if owner_of(folder) not in {None, uid}:
            renew(folder, uid)

    def _files_of_front(self) -> tuple[Path, ...]:
        run = self.instance.run_dir
        folder = run / FRONT_DOOR if self.instance.tls_apart else self.instance.tls_dir
        return run / FRONT_CONFIG, *_pair(folder, FRONT_DOOR)


def _pair(folder: Path, name: str) -> tuple[Path, ...]:
    return folder / certificates.AUTHORITY_FILE, folder / f"{name}.pem", folder / f"{name}.key"
