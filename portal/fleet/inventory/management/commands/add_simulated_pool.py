"""Create a pool with simulated nodes and devices, for trials, tests and benchmarks."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.common.actors import SYSTEM
from portal.common.errors import PortalError
from portal.fleet.inventory import services
from portal.fleet.inventory.node_commands import config_of
from provisioning.registry import driver_for


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--slug", default="simulated", help="slug of the pool")
        parser.add_argument("--name", default="", help="display name; default: Simulated pool")
        parser.add_argument("--nodes", type=int, default=4)
        parser.add_argument("--gpus", type=int, default=8, help="GPUs per node")
        parser.add_argument("--model", default="H100")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="setting of the simulation, for example start_delay_s=5; repeatable",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        config: dict[str, Any] = {
            "nodes": options["nodes"],
            "gpus": options["gpus"],
            "model": options["model"],
        }
        for item in options["set"]:
            key, equals, value = item.partition("=")
            if not equals:
                raise CommandError(f"“{item}” is not KEY=VALUE.")
            config[key] = _scalar(value)
        try:
            pool = services.create_pool(
                actor=SYSTEM,
                slug=options["slug"],
                name=options["name"] or "Simulated pool",
                driver="simulated",
                config=config,
            )
        except PortalError as error:
            problems = "; ".join(
                f"{field}: {' '.join(map(str, texts))}" for field, texts in error.field_errors.items()
            )
            raise CommandError(problems or error.message) from error
        # No backend is involved, because the simulation computes its inventory.
        services.apply_inventory(pool=pool, inventory=driver_for(config_of(pool)).inventory())
        flavors = ", ".join(pool.flavors.values_list("slug", flat=True))
        self.stdout.write(f"Created the simulated pool “{pool.slug}”. Flavors: {flavors}")


def _scalar(text: str) -> bool | int | float | str:
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
