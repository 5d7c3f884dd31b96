"""Journeys of users through the pages: clicks, fields, pages opened, seconds, errors."""
