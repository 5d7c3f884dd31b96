"""Placement: pure functions of a snapshot and a request."""
