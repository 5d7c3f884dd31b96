"""Replays published GPU traces through the portal's placement; see docs/benchmarks.md."""

import os

import django

# The replay decides through classes of the portal, which are loaded with its settings. It needs no database.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup()
