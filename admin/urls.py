"""Everything under /admin/: the fleet page, then Django's own admin, whose catch-all must come last."""

from django.contrib import admin
from django.urls import path

from admin import dead, pages, tasks

urlpatterns = [
    path("admin/fleet/", admin.site.admin_view(pages.fleet_page), name="fleet"),
    path("admin/fleet/live/", admin.site.admin_view(pages.fleet_live), name="fleet-live"),
    path("admin/dead-letters/", admin.site.admin_view(dead.letters), name="dead-letters"),
    path("admin/dead-letters/act/", admin.site.admin_view(dead.act), name="dead-letters-act"),
    path("admin/dead-letters/<path:letter_id>/", admin.site.admin_view(dead.letter), name="dead-letter"),
    path("admin/tasks/", admin.site.admin_view(tasks.tasks), name="tasks"),
    path("admin/tasks/cancel/", admin.site.admin_view(tasks.cancel), name="tasks-cancel"),
    path("admin/live/", admin.site.admin_view(pages.overview_live), name="overview-live"),
    path("admin/", admin.site.urls),
]
