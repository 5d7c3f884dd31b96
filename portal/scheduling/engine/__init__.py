"""Who may have what, and when: quota, fair share, preemption, back-fill, reservations, GPU-hours.

Pure functions and values: no database, no clock, no chance. Times are UTC seconds, amounts integers.
"""
