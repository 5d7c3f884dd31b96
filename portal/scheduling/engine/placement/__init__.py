"""Placement as pure functions of a snapshot and a request."""
