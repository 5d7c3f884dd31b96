"""Services that change limits and cohorts. `actor` is required."""
