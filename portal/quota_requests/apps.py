from django.apps import AppConfig


class QuotaRequestsConfig(AppConfig):
    name = "portal.quota_requests"
    label = "quota_requests"
