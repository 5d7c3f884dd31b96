"""Decisions and refusals as data. `reason` and `codes` are plain Python; `wording` puts them into words."""
