"""Celery entry point for `grants`."""

from __future__ import annotations

from portal.celery import app
from portal.people.scim import grants


@app.task(name="control.apply_scim_rules")
def apply_scim_rules() -> None:
    grants.apply_changed_rules()
