"""How the admin looks and what its sidebar holds: the UNFOLD setting, as plain data for project.settings."""

from typing import Any

from django.templatetags.static import static
from django.urls import reverse_lazy


def _link(title: str, icon: str, view: str, permission: str | None = None, **more: Any) -> dict[str, Any]:
    item = {"title": title, "icon": icon, "link": reverse_lazy(view), **more}
    if permission is not None:
        item["permission"] = lambda request: request.user.has_perm(permission)
    return item


# Teal, the water a shoal swims in; the weights are Tailwind's.
_TEAL = {
    "50": "oklch(98.4% .014 180.72)",
    "100": "oklch(95.3% .051 180.801)",
    "200": "oklch(91% .096 180.426)",
    "300": "oklch(85.5% .138 181.071)",
    "400": "oklch(77.7% .152 181.912)",
    "500": "oklch(70.4% .14 182.503)",
    "600": "oklch(60% .118 184.704)",
    "700": "oklch(51.1% .096 186.391)",
    "800": "oklch(43.7% .078 188.216)",
    "900": "oklch(38.6% .063 188.416)",
    "950": "oklch(27.7% .046 192.524)",
}

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Shoal",
    "SITE_HEADER": "Shoal",
    "SITE_SUBHEADER": "one backend for the fleet",
    "SITE_ICON": lambda request: static("console/shoal.svg"),
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("console/shoal.svg")},
    ],
    "SITE_URL": None,
    "SHOW_VIEW_ON_SITE": False,
    "COLORS": {"primary": _TEAL},
    "DASHBOARD_CALLBACK": "admin.pages.dashboard",
    "STYLES": [lambda request: static("console/console.css")],
    "SIDEBAR": {
        "show_search": True,
        "navigation": [
            {
                "items": [
                    _link("Overview", "dashboard", "admin:index"),
                    _link("Fleet", "lan", "fleet", "catalog.view_registeredmodel"),
                    _link("Tasks", "task", "tasks", "catalog.view_registeredmodel"),
                    _link("Dead letters", "unsubscribe", "dead-letters", "catalog.view_registeredmodel"),
                ],
            },
            {
                "title": "Catalog",
                "items": [
                    _link(
                        "Models",
                        "deployed_code",
                        "admin:catalog_registeredmodel_changelist",
                        "catalog.view_registeredmodel",
                    ),
                    _link("LoRAs", "layers", "admin:catalog_lora_changelist", "catalog.view_lora"),
                    _link("Pools", "pool", "admin:catalog_pool_changelist", "catalog.view_pool"),
                ],
            },
            {
                "title": "Access",
                "items": [
                    _link("API keys", "key", "admin:catalog_apikey_changelist", "catalog.view_apikey"),
                    _link("Usage", "bar_chart", "admin:catalog_usage_changelist", "catalog.view_usage"),
                    _link("Users", "group", "admin:auth_user_changelist", "auth.view_user"),
                    _link("Groups", "groups", "admin:auth_group_changelist", "auth.view_group"),
                ],
            },
        ],
    },
}
