from django.apps import AppConfig


class SiteFileConfig(AppConfig):
    name = "portal.site_file"
    label = "site_file"
