"""Pools of simulated hardware for tests and scale measurements; nothing runs in them."""
