"""Traits of the simulated_cluster driver."""

from __future__ import annotations

from provisioning.traits import AppReach, DeviceChecks, HomeStorage, Placing, Plane, SoftwareSource, Traits

TRAITS = Traits(
    plane=Plane.ENGINE,
    placing=Placing.ENGINE,
    homes=HomeStorage.NONE,
    software=SoftwareSource.NONE,
    reach=AppReach.NONE,
    device_checks=DeviceChecks.NONE,
    simulated=True,
    starting_observe_s=1.0,
)
