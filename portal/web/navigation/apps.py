from django.apps import AppConfig


class NavigationConfig(AppConfig):
    name = "portal.web.navigation"
    label = "navigation"
