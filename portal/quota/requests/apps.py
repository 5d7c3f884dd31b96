from django.apps import AppConfig


class QuotaRequestsConfig(AppConfig):
    name = "portal.quota.requests"
    label = "quota_requests"
