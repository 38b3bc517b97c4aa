"""Django's ASGI handler without what costs a thread per request: for async views that touch neither database nor disk.

Stock Django enters a thread-sensitive context, sends signals to synchronous receivers and closes responses in a thread:
about 1.8 ms of CPU per request. This one resolves, reads, calls and sends on the event loop alone.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from typing import Any

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse, HttpResponseBadRequest
from django.http.request import split_domain_port, validate_host
from django.urls import Resolver404, get_resolver

from inference import authentication, metrics
from inference.asgi import ClientLeft, Receive, Send, answer, answer_early, read_body
from inference.dialects import native
from inference.gateway import Gateway
from inference.hot import HotRequest, HotView
from protocol.errors import InvalidInput, MethodNotAllowed, RouteNotFound, ShoalError

log = logging.getLogger("shoal.http")

URLCONF = "inference.urls"
CLIENT_LEFT_STATUS = 499  # never sent; what the metrics call it


class LeanHandler(ASGIHandler):
    """Runs the views of `inference.urls`; each must be a HotView."""

    def __init__(self, make_gateway: Callable[[], Gateway]) -> None:
        # Not the parent's, which would load the middleware of the admin.
        self._make_gateway = make_gateway
        self.gateway: Gateway | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._answer(scope, receive, send)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Gateway]:
        """The gateway's background parts run while this is open."""
        self.gateway = self._make_gateway()
        await self.gateway.start()
        try:
            yield self.gateway
        finally:
            await self.gateway.stop()
            self.gateway = None

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with contextlib.AsyncExitStack() as life:
            try:
                await life.enter_async_context(self.running())
            except Exception:  # the process's edge; without this answer the server would go on without a gateway
                log.exception("the gateway could not start")
                await send({"type": "lifespan.startup.failed", "message": "the gateway could not start"})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            request = HotRequest(scope, BytesIO())
        except UnicodeDecodeError:
            await answer(HttpResponseBadRequest(b"the query string is not UTF-8"), send)
            return
        view, arguments = _find(request.path_info)
        is_read = not _has_body(request)
        try:
            self._admit(view, request)
            if not is_read:
                request.content = await self._read(view, request, receive)
                is_read = True
            response = await _attend(view, request, arguments, receive)
        except ClientLeft:
            return
        except ShoalError as error:
            response = _refuse(view, request, error)
        except SuspiciousOperation:  # Django reads the query string when it is first looked at
            response = _refuse(view, request, InvalidInput("the query string has too many fields"))
        except Exception:  # the request's edge
            log.exception("request failed", extra={"request_id": request.id, "route": view.name})
            response = _refuse(view, request, ShoalError("the gateway failed on this request; its log says why"))
        metrics.HTTP.labels(view.name, response.status_code).inc()
        if is_read:
            await answer(response, send)
        else:
            await answer_early(response, receive, send)

    def _admit(self, view: HotView, request: HotRequest) -> None:
        """All that can be checked before the body is read."""
        if self.gateway is None:
            raise RuntimeError("the server did not run the lifespan protocol, which starts the gateway")
        request.gateway = self.gateway
        if not view.methods:
            raise RouteNotFound("there is no such path; GET /docs lists those there are")
        if request.method not in view.methods and not (request.method == "HEAD" and "GET" in view.methods):
            raise MethodNotAllowed(f"this path has {', '.join(view.methods)}, not {request.method}")
        if view.is_open:
            return
        if not _is_known_host(request.header("HTTP_HOST"), tuple(settings.ALLOWED_HOSTS)):
            raise InvalidInput("this host name is not served here; SHOAL_ALLOWED_HOSTS lists those that are")
        request.key = authentication.authenticate(
            request.META.get("HTTP_AUTHORIZATION"), self.gateway.keys.current, self.gateway.require_keys
        )

    @staticmethod
    async def _read(view: HotView, request: HotRequest, receive: Receive) -> bytes:
        limits = request.gateway.limits
        most = limits.max_body_bytes if view.max_body is None else min(limits.max_body_bytes, view.max_body)
        return await read_body(receive, request.header("CONTENT_LENGTH"), most, limits.receive_s)


def _find(path: str) -> tuple[HotView, dict[str, Any]]:
    try:
        match = get_resolver(URLCONF).resolve(path)
    except Resolver404:
        return NO_VIEW, {}
    view: Any = match.func
    return view, match.kwargs


@functools.lru_cache(maxsize=1024)
def _is_known_host(host: str, allowed: tuple[str, ...]) -> bool:
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, allowed)


def _has_body(request: HotRequest) -> bool:
    return request.META.get("CONTENT_LENGTH", "0") != "0" or "HTTP_TRANSFER_ENCODING" in request.META


async def _attend(view: HotView, request: HotRequest, arguments: dict[str, Any], receive: Receive) -> HttpResponse:
    """Run the view, and cancel it when the client leaves."""
    task = asyncio.current_task()
    assert task is not None, "views run in a task"
    watcher = asyncio.create_task(_watch(request, task, receive))
    try:
        return await view.handle(request, **arguments)
    except asyncio.CancelledError:
        if not request.client_left:
            raise
        task.uncancel()
        metrics.HTTP.labels(view.name, CLIENT_LEFT_STATUS).inc()
        raise ClientLeft from None
    finally:
        watcher.cancel()


async def _watch(request: HotRequest, task: "asyncio.Task[Any]", receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    request.client_left = True
    task.cancel()


def _refuse(view: HotView, request: HotRequest, error: ShoalError) -> HttpResponse:
    metrics.ERRORS.labels(view.name, error.code).inc()
    response = view.render_error(error, request.id)
    if isinstance(error, MethodNotAllowed):
        response["Allow"] = ", ".join(view.methods)
    return response


async def _nothing(request: HotRequest) -> HttpResponse:
    raise RouteNotFound("there is no such path")


NO_VIEW = HotView(_nothing, (), native.render_error, is_open=True, max_body=0)
