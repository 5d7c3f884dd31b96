"""Settings for the queue and capacity: nodes, preemption, lifetimes, moves, accounting."""

from __future__ import annotations

from portal.settings.parsing import env

NODE_LEASE_S = env.int("BERTH_NODE_LEASE_S", default=20)
SWEEP_INTERVAL_S = env.float("BERTH_SWEEP_INTERVAL_S", default=2.0)
INVENTORY_INTERVAL_S = env.int("BERTH_INVENTORY_INTERVAL_S", default=60)
ORPHAN_SWEEP_INTERVAL_S = env.int("BERTH_ORPHAN_SWEEP_INTERVAL_S", default=20)
# Folders without an owner are deleted after this many hours (0: never), and stay listed for this many days.
BERTH_ORPHAN_FOLDER_HOURS = max(0, env.int("BERTH_ORPHAN_FOLDER_HOURS", default=24))
BERTH_ORPHAN_KEEP_DAYS = max(1, env.int("BERTH_ORPHAN_KEEP_DAYS", default=30))
# Whether running work can be preempted, its minimum run time, and the notice period.
BERTH_PREEMPTION = env.bool("BERTH_PREEMPTION", default=True)
BERTH_ENGINE_WINDOW = env.int("BERTH_ENGINE_WINDOW", default=8)
BERTH_MIN_RUN_S = env.int("BERTH_MIN_RUN_S", default=900)
BERTH_PREEMPTION_GRACE_S = env.int("BERTH_PREEMPTION_GRACE_S", default=120)
BERTH_LIFETIME_HOURS = max(0, env.int("BERTH_LIFETIME_HOURS", default=72))
BERTH_MAX_LIFETIME_HOURS = max(0, env.int("BERTH_MAX_LIFETIME_HOURS", default=336))
BERTH_RECLAIM_NOTICE_MINUTES = max(1, env.int("BERTH_RECLAIM_NOTICE_MINUTES", default=30))
BERTH_IDLE_GPU_MINUTES = max(0, env.int("BERTH_IDLE_GPU_MINUTES", default=120))
BERTH_IDLE_MINUTES = max(0, env.int("BERTH_IDLE_MINUTES", default=0))
# Whether workspaces with GPUs stop, with notice, once their team's GPU-hours are spent.
BERTH_STOP_WHEN_SPENT = env.bool("BERTH_STOP_WHEN_SPENT", default=True)
# Maximum cores and memory that a workspace keeps while its GPUs are released; 0: no limit.
BERTH_RELEASED_CORES = max(0, env.int("BERTH_RELEASED_CORES", default=4))
BERTH_RELEASED_MEMORY_GIB = max(0, env.int("BERTH_RELEASED_MEMORY_GIB", default=32))
# Whether preemptible work is moved without an operator, the minimum notice period, and how long a moved
# workspace stays.
BERTH_MOVE_AUTOMATICALLY = env.bool("BERTH_MOVE_AUTOMATICALLY", default=False)
BERTH_MOVE_NOTICE_MINUTES = max(1, env.int("BERTH_MOVE_NOTICE_MINUTES", default=10))
BERTH_MOVE_REST_HOURS = max(1, env.int("BERTH_MOVE_REST_HOURS", default=24))
BERTH_SHARE_HALF_LIFE_S = env.int("BERTH_SHARE_HALF_LIFE_S", default=86_400)
BERTH_LEDGER_TICK_S = env.int("BERTH_LEDGER_TICK_S", default=60)
# The currency of flavor prices and of costs in reports.
BERTH_CURRENCY = env.str("BERTH_CURRENCY", default="EUR")
# How long device samples are kept, by minute and by hour; docs/capacity.md states their size.
BERTH_KEEP_MINUTES_DAYS = env.int("BERTH_KEEP_MINUTES_DAYS", default=3)
BERTH_KEEP_HOURS_DAYS = env.int("BERTH_KEEP_HOURS_DAYS", default=400)
