"""Pools of a simulated engine that queues workspaces and places them by itself; nothing runs in them."""
