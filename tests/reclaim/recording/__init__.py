"""Records what real sessions report: `python -m tests.reclaim.recording --help`."""
