"""The scheduling engine: quota, fair share, preemption, back-fill, reservations, GPU-hours.

Pure functions and values: no database, clock or randomness. Times are UTC seconds, amounts integers.
"""
