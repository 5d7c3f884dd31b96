from django.apps import AppConfig


class ReclaimConfig(AppConfig):
    name = "portal.reclaim"
    label = "reclaim"
