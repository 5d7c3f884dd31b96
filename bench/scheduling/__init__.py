"""Replay of a cluster's trace through the portal's queue, beside FIFO, EASY back-fill and other policies."""

import os

import django

# The replay decides through classes of the portal, which are loaded with its settings. It needs no database.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup()
