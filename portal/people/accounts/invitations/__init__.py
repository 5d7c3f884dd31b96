"""Invites the people on a list to a team."""
