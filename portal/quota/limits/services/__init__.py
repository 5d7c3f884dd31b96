"""Writes of limits and cohorts. `actor` is required."""
