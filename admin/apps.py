"""The Django app of Shoal's admin site."""

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """Labelled "console" because django.contrib.admin already holds the label "admin".

    List it before `unfold` and `django.contrib.admin`, so that its templates are found first.
    """

    name = "admin"
    label = "console"
    verbose_name = "Console"
