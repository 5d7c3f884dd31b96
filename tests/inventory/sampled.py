"""Minutes of samples, as a node's sampler sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from portal.fleet.inventory import samples
from provisioning import messages
from provisioning.gpu.ring import Ring
from provisioning.gpu.rollup import MINUTE_S, minute
from provisioning.gpu.samples import Sample
from provisioning.live_samples import live_key

NOON = 1_763_726_400 - 1_763_726_400 % 3600


def rollup(
    uuid: str, start_s: int, seconds: Mapping[int, Mapping[str, int]] | Sequence[int]
) -> dict[str, Any]:
    """The message about a minute: second → values, or GPU use in percent by second."""
    if not isinstance(seconds, Mapping):
        seconds = {number: {"gpu_util_pct": percent} for number, percent in enumerate(seconds)}
    ring = Ring(MINUTE_S)
    for second, values in sorted(seconds.items()):
        ring.append(Sample(start_s + second, **values))
    return messages.dump(minute(ring.between(start_s, start_s + MINUTE_S), uuid=uuid, start_s=start_s))


def apply(*rollups: Any, node: str = "node-1", pool: str = "this-machine", now_s: float | None = None):
    last = max(
        (item["start_s"] for item in rollups if isinstance(item, dict) and "start_s" in item), default=NOON
    )
    return samples.apply_samples(
        pool_slug=pool,
        node_name=node,
        rollups=list(rollups),
        now_s=last + MINUTE_S + 1 if now_s is None else now_s,
    )


class SamplesInRedis:
    """A fake Redis with live samples, by node and UUID."""

    def __init__(self, stored: dict[str, dict[str, Any]]) -> None:
        self._stored = {live_key(node): samples for node, samples in stored.items()}
        self._rows: list[list[bytes | None]] = []

    def pipeline(self, transaction: bool) -> SamplesInRedis:
        return self

    def __enter__(self) -> SamplesInRedis:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hmget(self, key: str, uuids: list[str]) -> None:
        samples = self._stored.get(key, {})
        self._rows.append([json.dumps(samples[uuid]).encode() if uuid in samples else None for uuid in uuids])

    def execute(self) -> list[list[bytes | None]]:
        return self._rows
