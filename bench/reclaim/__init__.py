"""Reclaim: verdicts on recorded sessions, and the cost of a pass."""
