"""Journeys of people through the pages: clicks, fields, pages opened, seconds, errors."""
