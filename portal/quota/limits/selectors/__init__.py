"""Queries for quotas, caps and cohorts visible to the actor."""
