from django.apps import AppConfig


class InboxConfig(AppConfig):
    name = "portal.inbox"
    label = "inbox"
