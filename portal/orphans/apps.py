from django.apps import AppConfig


class OrphansConfig(AppConfig):
    name = "portal.orphans"
    label = "orphans"
