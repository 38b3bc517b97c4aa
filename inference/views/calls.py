"""The routes that run models."""

from typing import Any

from django.http import HttpResponse

from inference import dispatch
from inference.bodies import read_map, wants_msgpack
from inference.calls import Call
from inference.dialects import native, openai
from inference.hot import HotRequest, hot
from inference.schema import EMBEDDINGS, ENCODE, EXTRACT, SCORE
from inference.views.tasks import accepted_response
from protocol import names
from protocol.errors import InvalidInput

MAX_TEXT_BODY_BYTES = 16 << 20  # routes that take text alone


@hot(post=ENCODE)
async def encode(request: HotRequest, model: str) -> HttpResponse:
    """Vectors for a list of items."""
    return await _answer(request, "encode", model)


@hot(post=SCORE)
async def score(request: HotRequest, model: str) -> HttpResponse:
    """Items ranked by how well they answer a query."""
    return await _answer(request, "score", model)


@hot(post=EXTRACT)
async def extract(request: HotRequest, model: str) -> HttpResponse:
    """Entities, classes, objects, relations or structure found in a list of items."""
    return await _answer(request, "extract", model)


async def _answer(request: HotRequest, primitive: str, model: str) -> HttpResponse:
    fields = native.PARSERS[primitive](read_map(request.content, request.header("CONTENT_TYPE")))
    call = make_call(request, primitive=primitive, model=model, **fields)
    if prefers_async(request):
        return accepted_response(await dispatch.submit(request.gateway, call))
    outcome = await dispatch.run(request.gateway, call)
    return native.render(outcome, wants_msgpack(request.header("HTTP_ACCEPT"), request.header("CONTENT_TYPE")))


@hot(render_error=openai.render_error, max_body=MAX_TEXT_BODY_BYTES, post=EMBEDDINGS)
async def embeddings(request: HotRequest) -> HttpResponse:
    """Vectors in OpenAI's wording."""
    body = read_map(request.content, request.header("CONTENT_TYPE"))
    fields = openai.parse_embeddings(body)
    encoding = openai.parse_encoding(body)
    outcome = await dispatch.run(request.gateway, make_call(request, primitive="encode", **fields))
    return openai.render(outcome, encoding)


def make_call(request: HotRequest, **fields: Any) -> Call:
    """What the headers and the key add to what the body says."""
    lane = request.header("HTTP_X_SHOAL_LANE")
    if lane and lane not in names.LANES:
        raise InvalidInput(f"X-Shoal-Lane must be one of {', '.join(names.LANES)}", param="X-Shoal-Lane")
    return Call(**{"id": request.id, "key": request.key, "lane": lane or None, **fields})


def prefers_async(request: HotRequest) -> bool:
    wishes = request.header("HTTP_PREFER").lower().replace(";", ",").split(",")
    return "respond-async" in (wish.strip() for wish in wishes)
