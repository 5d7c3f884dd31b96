"""Measurements, each beside a peer or a bare floor in one run. Never timed assertions."""
