"""The management API's addresses, below /api/, with and without the last slash; the schema lists those with it."""

from django.urls import path

from catalog import api

urlpatterns = [
    path("models/", api.Models.as_view()),
    path("models/<path:name>/", api.Model.as_view()),
    path("keys/", api.Keys.as_view()),
    path("keys/<slug:prefix>/", api.Key.as_view()),
    path("models", api.Models.as_view(schema=None)),
    path("models/<path:name>", api.Model.as_view(schema=None)),
    path("keys", api.Keys.as_view(schema=None)),
    path("keys/<slug:prefix>", api.Key.as_view(schema=None)),
]
