"""Invitations of many people to a team, by a list."""
