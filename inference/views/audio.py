"""The routes that write down speech, in OpenAI's wording."""

from django.http import HttpResponse

from inference import dispatch
from inference.dialects import transcriptions
from inference.forms import read_form
from inference.hot import HotRequest, hot
from inference.schema import TRANSCRIPTIONS, TRANSLATIONS
from inference.views.calls import make_call


@hot(render_error=transcriptions.render_error, post=TRANSCRIPTIONS)
async def transcribe(request: HotRequest) -> HttpResponse:
    """What is said in a sound file, in the speaker's language."""
    return await _answer(request, transcriptions.TRANSCRIBE)


@hot(render_error=transcriptions.render_error, post=TRANSLATIONS)
async def translate(request: HotRequest) -> HttpResponse:
    """The same in English."""
    return await _answer(request, transcriptions.TRANSLATE)


async def _answer(request: HotRequest, task: str) -> HttpResponse:
    form = read_form(request.content, request.header("CONTENT_TYPE"))
    call = make_call(request, primitive="extract", **transcriptions.parse(form, task))
    return transcriptions.render(await dispatch.run(request.gateway, call), transcriptions.parse_format(form))
