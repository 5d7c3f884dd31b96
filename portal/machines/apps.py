from django.apps import AppConfig


class MachinesConfig(AppConfig):
    name = "portal.machines"
    label = "machines"
