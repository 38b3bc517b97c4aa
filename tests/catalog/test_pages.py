"""What the stock handler serves besides the admin and the management API: the schema, its page, files, errors."""

from typing import NoReturn

import pytest
from django.db import DatabaseError, connection
from django.test import Client

pytestmark = pytest.mark.django_db


def test_the_schema_is_open_and_has_hot_routes_and_management(client: Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]

    assert {"/v1/encode/{model}", "/v1/embeddings", "/v1/models", "/api/models/", "/api/keys/"} <= paths.keys()


def test_the_documentation_page_loads_nothing_from_elsewhere(client: Client) -> None:
    page = client.get("/docs").content.decode()

    assert "/static/drf_spectacular_sidecar/" in page
    assert "https://" not in page


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_documentation_is_open_whatever_key_is_sent(client: Client, path: str) -> None:
    assert client.get(path, headers={"Authorization": "Bearer sk-shoal-0-0"}).status_code == 200


@pytest.mark.parametrize("method", ["OPTIONS", "POST", "DELETE", "TRACE"])
@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/api/models/", "/api/keys/"])
def test_no_method_is_a_fault_of_ours(client: Client, path: str, method: str) -> None:
    assert client.generic(method, path).status_code < 500


def test_a_foreign_host_gets_the_error_envelope_and_no_traceback(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.get("/api/models/", headers={"Host": "evil.example"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_INPUT")
    assert "Traceback" not in caplog.text


def test_a_query_that_django_refuses_gets_the_error_envelope(client: Client) -> None:
    answer = client.get("/openapi.json?" + "&".join(f"a{number}=1" for number in range(2000)))

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_INPUT")


def test_static_files_are_served_without_a_web_server(client: Client) -> None:
    answer = client.get("/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui.css")

    assert answer.status_code == 200
    assert b"".join(answer) != b""  # a streaming response


@pytest.mark.parametrize("path", ["../../../manage.py", "..%2f..%2fmanage.py", "/etc/passwd"])
def test_static_files_end_at_their_folders(client: Client, path: str) -> None:
    assert client.get(f"/static/{path}").status_code in (400, 404)


def test_an_unknown_path_gets_the_error_envelope(client: Client) -> None:
    answer = client.get("/nothing/here")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "NOT_FOUND"


def test_a_fault_of_ours_gets_the_error_envelope_without_details(client: Client) -> None:
    client.raise_request_exception = False
    with connection.execute_wrapper(_broken):
        answer = client.get("/api/models/", headers={"Authorization": "Bearer sk-shoal-x-y"})

    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "INTERNAL_ERROR"
    assert "canary" not in answer.content.decode()


def _broken(*query: object) -> NoReturn:
    raise DatabaseError("canary")
