"""Reasons of decisions and refusals as data: the mechanism and the common codes.

Each package has its codes in a module `codes`, which is plain Python, and their texts in `wording`.
"""
