"""Everything that is not a hot route: the admin site, the management API, the schema, static files.

The hot routes are listed too, so that the schema has them; requests for them never come here (`project.asgi`).
"""

from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

from project.static import static_file

urlpatterns = [
    path("", include("inference.urls")),
    path("", include("admin.urls")),
    path("api/", include("catalog.urls")),
    path("openapi.json", SpectacularJSONAPIView.as_view(), name="schema"),
    path("docs", SpectacularSwaggerView.as_view(url_name="schema", http_method_names=["get", "head"])),
    re_path(r"^static/(?P<path>.*)$", static_file),
]
handler400 = "project.pages.bad_request"
handler404 = "project.pages.not_found"
handler500 = "project.pages.failed"
