"""Latest sample of each GPU, written by nodes to Redis for live charts. Losing it is harmless."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from provisioning import messages
from provisioning.celery_config import KEY_PREFIX, node_queue
from provisioning.gpu.samples import Sample

LIVE_TTL_S = 60


def live_key(node_name: str) -> str:
    """Return the hash of a node: device UUID → JSON of its latest `Sample`."""
    return f"{KEY_PREFIX}{node_queue(node_name)}:samples"


def parse_live(raw: Mapping[bytes, bytes], *, now_s: float | None = None) -> dict[str, Sample]:
    """Parse the hash read from Redis: UUID → sample up to `LIVE_TTL_S` old. Invalid entries are ignored."""
    now_s = time.time() if now_s is None else now_s
    samples: dict[str, Sample] = {}
    for uuid, value in raw.items():
        try:
            sample = messages.load(json.loads(value), Sample)
        except (ValueError, RecursionError):
            continue
        if now_s - sample.at_s <= LIVE_TTL_S:
            samples[uuid.decode(errors="replace")] = sample
    return samples
