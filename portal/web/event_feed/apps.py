from django.apps import AppConfig


class EventFeedConfig(AppConfig):
    name = "portal.web.event_feed"
    label = "event_feed"
