from django.apps import AppConfig


class LedgerConfig(AppConfig):
    name = "portal.quota.ledger"
    label = "ledger"
