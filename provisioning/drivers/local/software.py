"""Software environments of the local driver: finding, protecting, preloading and removing them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from provisioning.drivers.local import cgroups, environment, packages, state
from provisioning.drivers.local.failures import EnvironmentMissing
from provisioning.drivers.local.isolation import SandboxProbe
from provisioning.drivers.local.machine import LocalMachine
from provisioning.drivers.local.spares import Spares
from provisioning.drivers.local.start import Settings
from provisioning.environment_messages import OwnPackagesRequest
from provisioning.environments import folders
from provisioning.environments.folders import Folders
from provisioning.environments.store import Store
from provisioning.errors import InvalidSpec
from provisioning.types import JsonScalar, PoolConfig

DEFAULT_SPARES = 1
SPARES_FOR_S = 7 * 86400.0
"""How long after the last start from an environment spares are kept for it."""


class LocalSoftware(LocalMachine):
    """Environments in which workspaces run, and the spares that are kept ready in them."""

    def __init__(self, pool: PoolConfig) -> None:
        super().__init__(pool)
        config = pool.config
        self.environments = Store(self.home / "environments", Folders(self._folders))
        self.environment_path = Path(
            str(config.get("environment") or self.home / "environments" / "notebook")
        )
        self.spares = Spares(self.base, self.instance)
        self.spare_count = _number("spares", config.get("spares"), os.environ.get("BERTH_SPARES"))
        self.spare_environments = _number(
            "spare_environments",
            config.get("spare_environments"),
            os.environ.get("BERTH_SPARE_ENVIRONMENTS"),
        )

    def own_packages(self, spec: OwnPackagesRequest) -> list[str]:
        """Return the packages that a user installed on top of an environment, as `name==version`.

        Raises `InvalidSpec`.
        """
        self._require_home_names(team=spec.team, owner=spec.owner)
        site = self._site_of(spec.environment)
        if site is None:
            return []
        home = self.homes / spec.team / spec.owner
        key = packages.key(spec.environment, spec.environment_name, site.parent.name)
        return packages.installed(home, key)

    def python_of(self, spec: OwnPackagesRequest) -> str:
        """Return the Python version of an environment, such as `3.12`; empty if it is not on this node."""
        site = self._site_of(spec.environment)
        return site.parent.name.removeprefix("python") if site else ""

    def remove_environment(self, digest: str) -> bool:
        """Remove an environment; return False if a process or a started workspace uses it.

        Ends its spares first. Raises `OSError`.
        """
        for name in state.names(self.base):
            record = state.WorkspaceDir(self.base, name).record()
            if record is not None and record.environment == digest and not record.closed:
                return False
        with contextlib.suppress(ValueError):
            self.spares.end_for_environment(str(self.environments.folder_of(digest)))
            return self.environments.remove(digest)
        return True

    def _own_environment(self) -> environment.Environment:
        return environment.resolve(self.environment_path)

    @contextlib.contextmanager
    def _environment(self, digest: str) -> Iterator[environment.Environment]:
        """Yield the environment and protect it from removal meanwhile. Raises `EnvironmentMissing`."""
        if not digest:
            yield self._own_environment()
            return
        with self.environments.using(digest) as stamp:
            if stamp is None:
                raise EnvironmentMissing(
                    "The software environment of this workspace is still being installed on its node. "
                    "Try again in a few minutes.",
                    detail=f"no environment {digest} under {self.environments.folder}",
                )
            yield environment.from_stamp(stamp)
            self.environments.mark_used(digest)

    def _environments_in_use(self) -> list[environment.Environment]:
        """Return the environments of recent starts, the latest first."""
        recent = self.environments.used(since=time.time() - SPARES_FOR_S)[: self.spare_environments]
        stamps = (self.environments.find(digest) for digest in recent)
        return [environment.from_stamp(stamp) for stamp in stamps if stamp]

    def _site_of(self, digest: str) -> Path | None:
        if not digest:
            return packages.site_of(self._own_environment())
        stamp = self.environments.find(digest)
        return packages.site_of(environment.from_stamp(stamp)) if stamp else None

    def _folders(self) -> list[str]:
        """Return the existing environments that this node's settings name."""
        return folders.named_folders(os.environ, never=(self.home, self.homes))

    def _settings(self, sandbox: SandboxProbe, env: environment.Environment) -> Settings:
        return Settings(
            homes=self.homes,
            quotas=self.quotas,
            instance=self.instance,
            environment=env,
            sandbox=sandbox,
            egress=self.egress,
            cgroup_host=cgroups.detect(self.instance),
            port_min=self.port_min,
            port_max=self.port_max,
        )


def _number(name: str, configured: JsonScalar, environ: str | None) -> int:
    """Return a setting that counts spares as a number. Raises `InvalidSpec`."""
    value = environ if configured is None else configured
    try:
        return max(0, int(DEFAULT_SPARES if value in (None, "") else value))
    except ValueError:
        raise InvalidSpec(f"{name}={value} is not a number. Set {name} to 0 or more for this pool.") from None
