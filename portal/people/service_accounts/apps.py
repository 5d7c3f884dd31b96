from django.apps import AppConfig


class ServiceAccountsConfig(AppConfig):
    name = "portal.people.service_accounts"
    label = "service_accounts"
