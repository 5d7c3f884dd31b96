"""Rebalancing: proposes moves of running work, which operators or the policy apply."""
