"""Requests to addresses that people write: which may be reached, and the client that keeps to it."""
