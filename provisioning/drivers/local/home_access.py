"""Homes of the local driver: file servers, transfers, archives and deletion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioning.drivers.local import homes
from provisioning.drivers.local.failures import disk_errors
from provisioning.drivers.local.file_server import FileServers, Home
from provisioning.drivers.local.home_archives import HomeArchives
from provisioning.drivers.local.home_moves import HomeMoves
from provisioning.drivers.local.software import LocalSoftware

# Time slice of a home deletion: after it, other commands run and the deletion is requested again.
DELETE_HOME_S = 1.0


class LocalHomes(LocalSoftware):
    """Home folders of users on this machine."""

    def files(self, *, team: str, owner: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the home's file server (`provisioning/agent/files`).

        Raises `ProvisioningError`.
        """
        self._require_home_names(team=team, owner=owner)
        servers = self._file_servers()
        self._require_isolation(servers.sandbox)
        with disk_errors(self.base):
            return servers.query(Home(team, owner), question)

    def home_moves(self, *, team: str, owner: str) -> HomeMoves:
        """Return the transfers of this home to and from other machines. Raises `ProvisioningError`."""
        self._require_home_names(team=team, owner=owner)
        servers = self._file_servers()
        self._require_isolation(servers.sandbox)
        return HomeMoves(servers)

    def home_archives(self, *, team: str, owner: str) -> HomeArchives:
        """Return the archives of this home on this node."""
        return HomeArchives(self.home_moves(team=team, owner=owner).servers)

    def delete_home(self, *, team: str, owner: str) -> bool:
        """See `Driver.delete_home`."""
        self._require_home_names(team=team, owner=owner)
        with disk_errors(self.homes):
            servers, home = self._file_servers(), Home(team, owner)
            servers.end(home)
            if not homes.delete(self.homes, team, owner, limit_s=DELETE_HOME_S):
                return False
            return HomeArchives(servers).delete_all(home, limit_s=DELETE_HOME_S)

    def _file_servers(self) -> FileServers:
        sandbox, _ = self._isolation()
        return FileServers(self.base, self.homes, self.instance, self._own_environment(), sandbox)
