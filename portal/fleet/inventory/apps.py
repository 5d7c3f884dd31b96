from django.apps import AppConfig


class InventoryConfig(AppConfig):
    name = "portal.fleet.inventory"
    label = "inventory"
