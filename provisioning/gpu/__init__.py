"""Accelerators: inventory, use and health."""
