from django.apps import AppConfig


class InboxConfig(AppConfig):
    name = "portal.web.inbox"
    label = "inbox"
