from django.apps import AppConfig


class EventsConfig(AppConfig):
    name = "portal.common.events"
    label = "events"
