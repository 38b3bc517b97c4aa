"""What is served, and where each model stands."""

from django.http import HttpResponse

from inference import overview
from inference.hot import HotRequest, hot
from inference.responses import json_response
from inference.schema import GET_MODEL, LIST_MODELS


@hot(get=LIST_MODELS)
async def models(request: HotRequest) -> HttpResponse:
    """Every model, with its state on the fleet."""
    return json_response(overview.model_list(request.gateway.catalog.current, request.gateway.fleet.current))


@hot(get=GET_MODEL)
async def model(request: HotRequest, model: str) -> HttpResponse:
    """One model or variant."""
    catalog = request.gateway.catalog.current
    return json_response(overview.model_info(catalog.resolve(model), catalog, request.gateway.fleet.current))
