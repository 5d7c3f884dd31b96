from django.apps import AppConfig


class EventFeedConfig(AppConfig):
    name = "portal.event_feed"
    label = "event_feed"
