"""Static files of the admin and of the API's pages, from the gateway itself: no web server is needed in front."""

from django.contrib.staticfiles.views import serve
from django.http import FileResponse, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase


def static_file(request: HttpRequest, path: str) -> HttpResponseBase:
    """A file, whole: under ASGI a file that is read in synchronous chunks cannot be streamed, and Django warns of it.

    What "insecure" means there is "slow", which suits a handful of people.
    """
    found = serve(request, path, insecure=True)
    if not isinstance(found, FileResponse):
        return found  # not modified
    assert found.file_to_stream is not None  # it was made from an open file
    with found.file_to_stream:
        return HttpResponse(found.getvalue(), headers=found.headers)
