"""Rebalancing: proposes moves of running work, applied by operators or automatically by policy."""
