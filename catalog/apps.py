"""The Django app of the catalog."""

from django.apps import AppConfig


class CatalogConfig(AppConfig):
    name = "catalog"
    verbose_name = "Catalog"

    def ready(self) -> None:
        from catalog import signals  # noqa: F401  # importing connects them; models must be loaded first
