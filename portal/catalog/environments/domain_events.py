"""Domain events of environments."""

from __future__ import annotations

from dataclasses import dataclass

from portal.catalog.environments.models import EnvironmentVersion
from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class VersionReady(DomainEvent):
    """A version has become ready for the first time and now has a digest."""

    version: EnvironmentVersion


@dataclass(frozen=True, slots=True)
class BuildsChanged(DomainEvent):
    """A build was queued, changed its stage or ended."""
