"""Everything under /admin/: the fleet page, then Django's own admin, whose catch-all must come last."""

from django.contrib import admin
from django.urls import path

from admin import pages

urlpatterns = [
    path("admin/fleet/", admin.site.admin_view(pages.fleet_page), name="fleet"),
    path("admin/fleet/live/", admin.site.admin_view(pages.fleet_live), name="fleet-live"),
    path("admin/live/", admin.site.admin_view(pages.overview_live), name="overview-live"),
    path("admin/", admin.site.urls),
]
