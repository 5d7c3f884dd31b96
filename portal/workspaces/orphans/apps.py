from django.apps import AppConfig


class OrphansConfig(AppConfig):
    name = "portal.workspaces.orphans"
    label = "orphans"
