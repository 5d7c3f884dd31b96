"""Pools of pretended hardware for trials, tests and scale measurements: nothing runs in them."""
