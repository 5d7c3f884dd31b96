"""What environments tell to the rooms above them."""

from __future__ import annotations

from dataclasses import dataclass

from portal.catalog.environments.models import EnvironmentVersion
from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class VersionReady(DomainEvent):
    """A version has been built for the first time: what was asked for with it has a digest now."""

    version: EnvironmentVersion


@dataclass(frozen=True, slots=True)
class BuildsChanged(DomainEvent):
    """A build has been asked for, has come to another stage or has ended: who waits for it is told anew."""
