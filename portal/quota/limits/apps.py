from django.apps import AppConfig


class QuotasConfig(AppConfig):
    name = "portal.quota.limits"
    label = "quotas"
