"""Everything that is not a hot route: the admin site, the management API, the schema, static files.

The hot routes are listed too, so that the schema has them; requests for them never come here (`project.asgi`).
"""

from django.contrib.staticfiles.views import serve
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

urlpatterns = [
    path("", include("inference.urls")),
    path("", include("admin.urls")),
    path("api/", include("catalog.urls")),
    path("openapi.json", SpectacularJSONAPIView.as_view(), name="schema"),
    path("docs", SpectacularSwaggerView.as_view(url_name="schema")),
    # Served by the gateway itself, so that the admin needs no web server in front. What "insecure" means here is
    # "slow", which suits a handful of people.
    re_path(r"^static/(?P<path>.*)$", serve, {"insecure": True}),
]
handler404 = "project.pages.not_found"
handler500 = "project.pages.failed"
