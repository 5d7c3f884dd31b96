"""Decisions and refusals as data: the mechanism, and what is common to all rooms.

Each room has its codes in a module `codes`, which is plain Python, and their texts in `wording`.
"""
