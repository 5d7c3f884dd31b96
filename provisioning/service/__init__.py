"""Supervision of services on one machine: ordered start, monitoring, restart and stop.

Shared by `make up` and `berth node run`. Uses only the standard library, so that it can be imported before
packages are installed; the exception is `user_scope`, which inspects control groups.
"""
