"""The gateway as one ASGI application: hot routes to the lean handler, everything else to stock Django."""

from typing import Any

from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.utils import timezone

from catalog import registry, usage
from catalog.follow import SnapshotFollower
from catalog.issuing import KeyFollower
from inference.asgi import ClientLeft, Receive, Send, answer_early, read_body
from inference.dialects import native
from inference.gateway import Gateway, Limits
from inference.hot import new_id
from inference.lean import LeanHandler
from inference.remote_media import RemoteMedia
from inference.usage import Amounts
from protocol.errors import ShoalError

GATEWAY = "shoal.gateway"  # where in the scope pages of the admin find it, to read
HOT_PREFIXES = ("/v1/", "/v2/")
HOT_PATHS = frozenset({"/", "/healthz", "/livez", "/readyz", "/health", "/metrics", "/rerank", "/embed"})
STOCK_BODY_BYTES = 2 << 20  # forms of the admin, entry documents
STOCK_SILENCE_S = 30


def make_gateway() -> Gateway:
    """A gateway as the settings describe it."""
    return Gateway(
        broker_url=settings.SHOAL_BROKER_URL,
        redis_url=settings.SHOAL_REDIS_URL,
        data_dir=settings.SHOAL_DATA,
        catalog=SnapshotFollower(settings.SHOAL_REDIS_URL, registry.restore),
        keys=KeyFollower(settings.SHOAL_REDIS_URL),
        record_usage=record_usage,
        require_keys=settings.SHOAL_REQUIRE_KEYS,
        media=RemoteMedia(settings.SHOAL_MEDIA_ORIGINS),
        limits=Limits(
            request_timeout_s=settings.SHOAL_REQUEST_TIMEOUT_S,
            cold_wait_s=settings.SHOAL_COLD_WAIT_S,
            provision_wait_s=settings.SHOAL_PROVISION_WAIT_S,
            task_ttl_s=settings.SHOAL_TASK_TTL_S,
            max_pending=settings.SHOAL_MAX_PENDING,
            max_body_bytes=settings.SHOAL_MAX_BODY_BYTES,
        ),
    )


def record_usage(amounts: Amounts) -> None:
    """Runs in a thread of its own now and then, so it leaves no database connection behind."""
    try:
        usage.record({key: usage.Amount(*amount) for key, amount in amounts.items()}, timezone.now())
    finally:
        connections.close_all()


class Application:
    """Which of the two handlers a connection belongs to; the lean one also owns the process's life."""

    def __init__(self) -> None:
        self.lean = LeanHandler(make_gateway)
        self.stock = ASGIHandler()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["type"] == "lifespan" or is_hot(scope["path"]):
            await self.lean(scope, receive, send)
        else:
            await self._answer_stock(scope, receive, send)

    async def _answer_stock(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Django would write a body of any size to disk before it looks at who sent it."""
        declared = dict(scope["headers"]).get(b"content-length", b"").decode("latin-1")
        try:
            body = await read_body(receive, declared, STOCK_BODY_BYTES, STOCK_SILENCE_S)
        except ClientLeft:
            return
        except ShoalError as error:
            await answer_early(native.render_error(error, new_id()), receive, send)
            return
        await self.stock({**scope, GATEWAY: self.lean.gateway}, _first(body, receive), send)


def _first(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the whole body at once, and then what else comes."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive_body_first() -> Any:
        return next(messages, None) or await receive()

    return receive_body_first


def is_hot(path: str) -> bool:
    return path.startswith(HOT_PREFIXES) or path in HOT_PATHS
