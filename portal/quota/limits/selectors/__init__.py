"""Reads of quota, requests, ledger and calendar, as the actor may see them."""
