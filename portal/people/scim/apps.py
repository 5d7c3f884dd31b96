from django.apps import AppConfig


class ScimConfig(AppConfig):
    name = "portal.people.scim"
    label = "scim"
