"""Accelerators: what is there, how busy it is, whether it is healthy."""
