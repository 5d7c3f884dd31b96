"""Traits of the local driver."""

from __future__ import annotations

from provisioning.traits import AppReach, DeviceChecks, HomeStorage, Plane, SoftwareSource, Traits

TRAITS = Traits(
    plane=Plane.NODE,
    homes=HomeStorage.NODE,
    software=SoftwareSource.FOLDERS,
    reach=AppReach.SOCKET,
    device_checks=DeviceChecks.NODE,
    measured=True,
    limits_egress=True,
    limits_homes=True,
)
