"""Static files as the gateway serves them, asynchronously and without a web server in front."""

from http import HTTPStatus

from django.test import AsyncClient

CSS = "/static/console/console.css"


async def test_a_file_is_served_whole_and_without_a_warning(async_client: AsyncClient) -> None:
    response = await async_client.get(CSS)  # a warning would be an error

    assert response.status_code == HTTPStatus.OK
    assert response["Content-Type"].startswith("text/css")
    assert b".console-tiles" in response.content
    assert int(response["Content-Length"]) == len(response.content)


async def test_a_file_that_a_browser_has_is_not_sent_again(async_client: AsyncClient) -> None:
    first = await async_client.get(CSS)

    again = await async_client.get(CSS, headers={"If-Modified-Since": first["Last-Modified"]})

    assert again.status_code == HTTPStatus.NOT_MODIFIED


async def test_nothing_outside_the_static_folders_is_served(async_client: AsyncClient) -> None:
    response = await async_client.get("/static/../../pyproject.toml")

    assert response.status_code == HTTPStatus.BAD_REQUEST
    assert b"shoal" not in response.content
