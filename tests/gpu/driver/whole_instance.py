"""A whole instance on a fake machine, whose GPU is allocated without a check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import instance
from tests.gpu.driver.machine import Machine
from tests.instance import Berth, eventually

LIMIT_S = 60
UNCHECKED = """
import time, django
django.setup()
from portal.catalog.models import Flavor, Template
from portal.common.actors import SYSTEM
from portal.gpu_checks import runs
from portal.gpu_checks.models import GpuCheckRun
from portal.fleet.inventory.cordons import lift_cordon
from portal.fleet.inventory.models import Device, Pool

# Only NVML is here: the device could be neither checked nor scrubbed, and would not be handed out.
Pool.objects.update(check_every_hours=0, hand_out_max_age_hours=0, check_required=False, scrub_required=False)
# One on schedule may have begun before that.
while GpuCheckRun.objects.filter(state__in=runs.OPEN).exists():
    time.sleep(0.1)
for device in Device.objects.filter(cordoned=True):
    lift_cordon(actor=SYSTEM, device_id=device.pk)
"""


@contextmanager
def running(host: Machine, folder: Path, catalog: str) -> Iterator[Berth]:
    """All of its processes use the fake machine. `catalog` is Python that creates flavors and templates."""
    with instance.running(folder, environment=None, LD_LIBRARY_PATH=str(host.folder)) as berth:
        eventually(
            lambda: berth.rows("SELECT 1 FROM inventory_device") or None, limit_s=LIMIT_S, what="the GPU"
        )
        berth.run("-c", UNCHECKED + catalog, DJANGO_SETTINGS_MODULE="portal.settings")
        yield berth
