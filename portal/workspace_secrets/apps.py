from django.apps import AppConfig


class WorkspaceSecretsConfig(AppConfig):
    name = "portal.workspace_secrets"
    label = "workspace_secrets"
