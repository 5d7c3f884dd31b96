"""Records reports of real sessions: `python -m tests.reclaim.recording --help`."""
