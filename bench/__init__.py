"""Measurements, each beside a peer or a lower bound in the same run. They contain no timed assertions."""
