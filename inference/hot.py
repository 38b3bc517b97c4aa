"""What makes an async function a hot view: which methods it has, who may call it, how its errors look, its schema."""

import os
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse

from catalog.keys import KeyRecord
from inference.dialects import native
from inference.gateway import Gateway
from protocol.errors import ShoalError

View = Callable[..., Awaitable[HttpResponse]]
RenderError = Callable[[ShoalError, str], HttpResponse]


def _ids() -> Iterator[str]:
    """Unguessable ids in Celery's form. One system call makes many: each gives the interpreter's lock away."""
    while True:
        block = os.urandom(16 * 256)
        for start in range(0, len(block), 16):
            yield str(uuid.UUID(bytes=block[start : start + 16], version=4))


new_id = _ids().__next__


class HotRequest(ASGIRequest):
    """A Django request with its body in memory and all that a hot view needs at hand."""

    gateway: Gateway
    key: KeyRecord | None = None
    content: bytes = b""
    client_left: bool = False

    def __init__(self, scope: Mapping[str, Any], body_file: BytesIO) -> None:
        super().__init__(scope, body_file)
        self.id = new_id()

    def header(self, name: str) -> str:
        """A header by its WSGI name, such as `HTTP_ACCEPT`; empty when it was not sent."""
        return str(self.META.get(name, ""))


@dataclass(frozen=True, eq=False)  # eq=False: reversing URLs wants views that hash
class HotView:
    """A view that the lean handler can run; `operations` maps a method to the `extend_schema` that documents it."""

    handle: View
    methods: tuple[str, ...]
    render_error: RenderError
    is_open: bool  # no key and no host is asked for
    max_body: int | None  # bytes, where less than the gateway's limit
    operations: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        return self.handle.__name__.strip("_")

    def __call__(self, request: Any, **kwargs: Any) -> Any:
        return self.handle(request, **kwargs)

    @cached_property
    def cls(self) -> type:
        """What drf-spectacular looks at: a REST framework view with the same methods, which nobody calls."""
        from rest_framework.views import APIView

        members = {method.lower(): describe(_stub(method)) for method, describe in self.operations.items()}
        return type(self.name, (APIView,), {**members, "__doc__": self.handle.__doc__})

    initkwargs: Mapping[str, Any] = field(default_factory=dict)


def hot(
    *,
    render_error: RenderError = native.render_error,
    is_open: bool = False,
    max_body: int | None = None,
    **operations: Callable[[Any], Any],
) -> Callable[[View], HotView]:
    """Make a hot view; each keyword that is left names a method, in lower case, and gives its schema."""
    methods = tuple(method.upper() for method in operations)
    return lambda handle: HotView(handle, methods, render_error, is_open, max_body, operations)


def _stub(method: str) -> Callable[..., None]:
    def operation(self: Any, request: Any, **kwargs: Any) -> None: ...

    operation.__name__ = method
    return operation
