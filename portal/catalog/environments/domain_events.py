"""Domain events of environments."""

from __future__ import annotations

from dataclasses import dataclass

from portal.catalog.environments.models import EnvironmentVersion
from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class VersionReady(DomainEvent):
    """A version is ready for the first time and has a digest now."""

    version: EnvironmentVersion


@dataclass(frozen=True, slots=True)
class BuildsChanged(DomainEvent):
    """A build was queued, has changed its stage or has ended."""
