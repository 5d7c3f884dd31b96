from django.apps import AppConfig


class HistoryConfig(AppConfig):
    name = "portal.history"
    label = "history"
