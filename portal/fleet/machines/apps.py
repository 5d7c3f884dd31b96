from django.apps import AppConfig


class MachinesConfig(AppConfig):
    name = "portal.fleet.machines"
    label = "machines"
