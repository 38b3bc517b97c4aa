"""Everything that is not a hot route: the admin site, the management API, the schema, static files."""

from django.contrib.staticfiles.views import serve
from django.urls import include, path, re_path

urlpatterns = [
    path("", include("admin.urls")),
    path("api/", include("catalog.urls")),
    # Served by the gateway itself, so that the admin needs no web server in front. What "insecure" means here is
    # "slow", which suits a handful of people.
    re_path(r"^static/(?P<path>.*)$", serve, {"insecure": True}),
]
