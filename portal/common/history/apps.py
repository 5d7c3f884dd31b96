from django.apps import AppConfig


class HistoryConfig(AppConfig):
    name = "portal.common.history"
    label = "history"
