from django.apps import AppConfig


class RepositoriesConfig(AppConfig):
    name = "portal.catalog.repositories"
