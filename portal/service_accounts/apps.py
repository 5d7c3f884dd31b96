from django.apps import AppConfig


class ServiceAccountsConfig(AppConfig):
    name = "portal.service_accounts"
    label = "service_accounts"
