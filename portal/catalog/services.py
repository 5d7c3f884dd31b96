"""Catalog entries of the portal: the initial catalog, and flavors for discovered accelerators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.db import transaction

from portal.catalog.environments.models import Environment
from portal.catalog.initial_catalog import FLAVORS, TEMPLATES
from portal.catalog.models import Flavor, Template
from portal.fleet.inventory.domain_events import InventoryApplied
from portal.fleet.inventory.models import Pool
from provisioning.types import DeviceKind

GPU_COUNTS = (1, 2, 4, 8)


@transaction.atomic
def ensure_starting_catalog() -> None:
    """Create missing entries of the initial catalog. Changed and deleted ones stay as they are."""
    for template in TEMPLATES:
        if not Template.objects.filter(slug=template["slug"]).exists():
            Template.objects.create(**template)
    for flavor in FLAVORS:
        _ensure_flavor(**flavor)


def prefer_environment(*, template: str, environment: str) -> None:
    """Set a template's default environment if it has none."""
    shared_environment = Environment.objects.filter(slug=environment, team=None).first()
    entry = Template.objects.filter(slug=template, environment=None).first()
    if shared_environment is not None and entry is not None:
        entry.environment = shared_environment
        entry.save(update_fields=["environment"])


def offer_accelerators(event: InventoryApplied) -> None:
    """Create flavors for newly discovered accelerators."""
    ensure_accelerator_flavors(event.pool)


def ensure_accelerator_flavors(pool: Pool) -> None:
    """Create flavors with 1, 2, 4 and 8 whole accelerators of each model, up to the largest node.

    They get a proportional part of the node's CPU and memory, minus 1/10 for work without accelerators: a
    small workspace must not block all GPUs of a node. Flavors of a simulated pool are bound to it, and
    include one without accelerators, since no others can run there.
    """
    for model, (largest, cpu_milli, memory_mib) in _models(pool).items():
        for count, cpu, memory in accelerator_sizes(largest, cpu_milli, memory_mib):
            _ensure_flavor(
                slug=f"{_slug(pool)}{_word(model)}-x{count}",
                name=f"{count} × {model}",
                cpu_milli=cpu,
                memory_mib=memory,
                accelerator_count=count,
                accelerator_model=model,
                pool=pool if pool.simulated else None,
                position=200 + count,
            )
    for profile, (largest, cpu_milli, memory_mib) in _profiles(pool).items():
        _ensure_flavor(
            slug=f"{_slug(pool)}mig-{_word(profile)}",
            name=f"MIG {profile}",
            cpu_milli=max(cpu_milli * 9 // (largest * 10) // 1000 * 1000, 1000),
            memory_mib=max(memory_mib * 9 // (largest * 10) // 1024 * 1024, 1024),
            accelerator_count=1,
            accelerator_model="",
            mig_profile=profile,
            pool=pool if pool.simulated else None,
            position=190,
        )
    if pool.simulated:
        _ensure_flavor(
            slug=f"{_slug(pool)}cpu",
            name=f"Simulated CPU in {pool.slug}",
            cpu_milli=1000,
            memory_mib=2048,
            accelerator_count=0,
            accelerator_model="",
            pool=pool,
            position=300,
        )


def accelerator_sizes(largest: int, cpu_milli: int, memory_mib: int) -> Iterator[tuple[int, int, int]]:
    """Yield device counts to offer on a node with `largest` devices, each with its CPU and memory."""
    for count in (n for n in GPU_COUNTS if n <= largest):
        yield (
            count,
            max(cpu_milli * count * 9 // (largest * 10) // 1000 * 1000, 1000),
            max(memory_mib * count * 9 // (largest * 10) // 1024 * 1024, 1024),
        )


def _models(pool: Pool) -> dict[str, tuple[int, int, int]]:
    """Return by model the most devices on one node, and that node's CPU and memory."""
    models: dict[str, tuple[int, int, int]] = {}
    for node in pool.nodes.prefetch_related("devices"):
        counts: dict[str, int] = {}
        for device in node.devices.all():
            # Workspaces get only instances of a partitioned GPU.
            if device.present and device.kind == DeviceKind.GPU.value and not device.mig_mode:
                counts[device.model] = counts.get(device.model, 0) + 1
        for model, count in counts.items():
            best = models.get(model)
            if best is None or count > best[0]:
                models[model] = (count, node.cpu_milli, node.memory_mib)
    return models


def _profiles(pool: Pool) -> dict[str, tuple[int, int, int]]:
    """Return by MIG profile the most devices of any kind on one node, and that node's CPU and memory."""
    profiles: dict[str, tuple[int, int, int]] = {}
    for node in pool.nodes.prefetch_related("devices"):
        devices = [device for device in node.devices.all() if device.present and not device.mig_mode]
        for profile in {device.mig_profile for device in devices if device.mig_profile}:
            best = profiles.get(profile)
            if best is None or len(devices) > best[0]:
                profiles[profile] = (len(devices), node.cpu_milli, node.memory_mib)
    return profiles


def _slug(pool: Pool) -> str:
    return f"{pool.slug}-" if pool.simulated else ""


def _word(model: str) -> str:
    """Return the slug of a model: `NVIDIA H100 80GB HBM3` → `nvidia-h100-80gb-hbm3`."""
    model = model.removeprefix("Simulated ")
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:40] or "accelerator"


def _ensure_flavor(*, slug: str, **fields: Any) -> None:
    """Create the flavor unless the slug exists, also as a deleted flavor."""
    slug = slug[:60].strip("-")
    if not Flavor.objects.filter(slug=slug).exists():
        Flavor.objects.create(slug=slug, **fields)
