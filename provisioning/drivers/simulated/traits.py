"""Traits of the simulated driver."""

from __future__ import annotations

from provisioning.traits import AppReach, DeviceChecks, HomeStorage, Plane, SoftwareSource, Traits

TRAITS = Traits(
    plane=Plane.ENGINE,
    homes=HomeStorage.NONE,
    software=SoftwareSource.NONE,
    reach=AppReach.NONE,
    device_checks=DeviceChecks.SIMULATED,
    simulated=True,
    starting_observe_s=1.0,
)
