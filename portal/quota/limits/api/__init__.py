"""REST API of quotas, caps, cohorts, site limits and rates."""
