"""Replays published GPU traces through the placement engine; see docs/placement.md."""
