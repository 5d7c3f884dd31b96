from django.apps import AppConfig


class WorkspacesConfig(AppConfig):
    name = "portal.workspaces"
    label = "workspaces"
