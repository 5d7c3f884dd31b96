"""`python -m bench.placement.speed --data DIR`: time of a decision in memory, with 12,000 GPUs.

Uses the openb cluster twice, and 100,000 requests drawn from one of its lists. In `fill` no request leaves,
so the cluster fills up and most later requests are refused. In `churn` the oldest requests leave above 90 %
of the GPUs, so nearly every request is placed. Python's full collections run between cycles of 100 decisions,
by the function that the portal calls after its own cycles.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.placement.traces import TraceError, read_nodes, read_workloads
from portal.scheduling import pauses
from portal.scheduling.engine.placement.engine import Cluster, RequestMix
from portal.scheduling.engine.placement.scoring import DEFAULT_POLICY, POLICIES
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import Placement, ResourceRequest

_CHURN_PERCENT = 90
CYCLE = 100
"""Number of requests that are decided between two garbage collections."""
PAUSE_MS = 50
"""Maximum time of a decision."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.placement.speed", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with openb/")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--workload", default="default")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--copies", type=int, default=2, help="how many times the openb cluster")
    parser.add_argument("--policy", default=DEFAULT_POLICY, choices=sorted(POLICIES))
    options = parser.parse_args(arguments)
    try:
        nodes = copies(read_nodes(options.data), options.copies)
        past = next(
            (workload.past for workload in read_workloads(options.data) if workload.name == options.workload),
            None,
        )
        if past is None:
            raise TraceError(f"{options.data} has no workload {options.workload}")
    except (TraceError, OSError, KeyError, ValueError) as error:
        print(f"bench.placement.speed: {error}", file=sys.stderr)
        return 2
    chance = random.Random(1)
    requests = [chance.choice(past) for _ in range(options.requests)]
    gpus = sum(len(node.devices) for node in nodes)
    report = {"nodes": len(nodes), "gpus": gpus, "requests": len(requests), "policy": options.policy}
    for way, percent in (("fill", 0), ("churn", _CHURN_PERCENT)):
        # Learn the mix from the last requests, like the portal.
        cluster = Cluster(nodes, policy=options.policy, mix=RequestMix.learnt(requests, ()))
        # As the portal does after reading a snapshot (`snapshot_cache`), and after each cycle (`tasks`).
        pauses.freeze()
        report[way] = measure(cluster, requests, gpus * 10 * percent)
        print(way, json.dumps(report[way]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def measure(cluster: Cluster, requests: Sequence[ResourceRequest], ceiling_milli: int) -> dict[str, float]:
    """Return milliseconds per decision with its bookkeeping. Above the ceiling the oldest leave, untimed.

    Garbage collections are not part of any decision and are reported separately.
    """
    running: deque[tuple[Placement, ResourceRequest]] = deque()
    used = placed = 0
    wall, busy = [], 0.0
    rests = [0.0]
    for number, request in enumerate(requests):
        if number % CYCLE == 0:
            rested_from = time.perf_counter()
            if pauses.collect_if_due():
                rests.append((time.perf_counter() - rested_from) * 1000)
        accelerators = request.accelerators
        size = accelerators.count * accelerators.share_milli
        while ceiling_milli and running and used + size > ceiling_milli:
            oldest, its = running.popleft()
            cluster.release(oldest, its)
            used -= its.accelerators.count * its.accelerators.share_milli
        busy_from, begun = time.process_time(), time.perf_counter()
        placement = cluster.find(request)
        if placement is not None:
            cluster.commit(placement, request)
        wall.append((time.perf_counter() - begun) * 1000)
        busy += time.process_time() - busy_from
        if placement is not None:
            placed += 1
            used += size
            if ceiling_milli:
                running.append((placement, request))
    ordered = sorted(wall)
    return {
        "placed": placed,
        "mean_ms": round(sum(wall) / len(wall), 4),
        "mean_cpu_ms": round(busy * 1000 / len(wall), 4),
        "p50_ms": round(ordered[len(ordered) // 2], 4),
        "p99_ms": round(ordered[len(ordered) * 99 // 100], 4),
        "p999_ms": round(ordered[len(ordered) * 999 // 1000], 4),
        "max_ms": round(ordered[-1], 3),
        "above_50_ms": sum(took > PAUSE_MS for took in wall),
        "rests": len(rests) - 1,
        "longest_rest_ms": round(max(rests), 1),
    }


def copies(nodes: Sequence[NodeCapacity], count: int) -> list[NodeCapacity]:
    """Return the cluster `count` times, with different names."""
    return [
        replace(
            node,
            name=f"{copy}-{node.name}",
            devices=tuple(replace(device, uuid=f"{copy}-{device.uuid}") for device in node.devices),
        )
        for copy in range(count)
        for node in nodes
    ]


if __name__ == "__main__":
    sys.exit(main())
