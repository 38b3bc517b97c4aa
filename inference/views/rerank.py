"""The routes that rank, in the wordings of Cohere, Jina and text-embeddings-inference, and the latter's `embed`."""

from django.http import HttpResponse

from inference import dispatch
from inference.bodies import read_map
from inference.dialects import cohere, tei
from inference.hot import HotRequest, hot
from inference.schema import RERANK, RERANK_V2, TEI_EMBED, TEI_RERANK
from inference.views.calls import MAX_TEXT_BODY_BYTES, make_call


@hot(render_error=cohere.render_error, max_body=MAX_TEXT_BODY_BYTES, post=RERANK)
async def rerank(request: HotRequest) -> HttpResponse:
    """Documents ranked by relevance to a query, in the wording of Cohere and Jina."""
    return await _rerank(request, "1")


@hot(render_error=cohere.render_error, max_body=MAX_TEXT_BODY_BYTES, post=RERANK_V2)
async def rerank_v2(request: HotRequest) -> HttpResponse:
    """The same under the path of Cohere's second version."""
    return await _rerank(request, "2")


async def _rerank(request: HotRequest, version: str) -> HttpResponse:
    body = read_map(request.content, request.header("CONTENT_TYPE"))
    call = make_call(request, primitive="score", **cohere.parse_rerank(body))
    top, with_documents = cohere.parse_shape(body)
    return cohere.render(await dispatch.run(request.gateway, call), top, with_documents, version)


@hot(render_error=tei.render_rerank_error, max_body=MAX_TEXT_BODY_BYTES, post=TEI_RERANK)
async def tei_rerank(request: HotRequest) -> HttpResponse:
    """Texts ranked by relevance to a query, in the wording of text-embeddings-inference."""
    body = read_map(request.content, request.header("CONTENT_TYPE"))
    fields = tei.parse_rerank(body, request.header("HTTP_X_SHOAL_MODEL"), request.gateway.catalog.current)
    outcome = await dispatch.run(request.gateway, make_call(request, primitive="score", **fields))
    return tei.render_rerank(outcome, body.get("return_text") is True)


@hot(render_error=tei.render_embed_error, max_body=MAX_TEXT_BODY_BYTES, post=TEI_EMBED)
async def tei_embed(request: HotRequest) -> HttpResponse:
    """Vectors in the wording of text-embeddings-inference."""
    body = read_map(request.content, request.header("CONTENT_TYPE"))
    fields = tei.parse_embed(body, request.header("HTTP_X_SHOAL_MODEL"), request.gateway.catalog.current)
    return tei.render_embed(await dispatch.run(request.gateway, make_call(request, primitive="encode", **fields)))
