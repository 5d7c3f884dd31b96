from django.apps import AppConfig


class WorkspaceSecretsConfig(AppConfig):
    name = "portal.workspaces.secrets"
    label = "workspace_secrets"
