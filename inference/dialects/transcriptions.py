"""OpenAI's dialect of speech: POST /v1/audio/transcriptions and /v1/audio/translations, forms with one file.

A field that would change the answer and is not read here is refused, never ignored.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse

from inference.calls import Outcome
from inference.dialects import openai
from inference.dialects.languages import NAMES
from inference.forms import Form
from inference.responses import JSON, json_response, respond
from protocol import errors, native
from protocol.errors import InvalidInput, ShoalError
from protocol.items import parse_text
from protocol.options import shown, shown_key

TRANSCRIBE, TRANSLATE = "transcribe", "translate"
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_TIMED = ("srt", "verbose_json", "vtt")
_GRANULARITIES = ("timestamp_granularities[]", "timestamp_granularities")
_FIELDS = ("file", "model", "prompt", "response_format", "temperature")
_OF_TRANSCRIBE = (*_FIELDS, "language", *_GRANULARITIES, "stream", "chunking_strategy")

# A worker's words for a place → the form's
_ITEM = re.compile(r"^items(\[\d+\])?(\.audio(\.\w+)?)?$")
_PLACES = {
    "options.instruction": "prompt",
    "options.language": "language",
    "options.timestamps": "response_format",
    "options.task": "model",
}


def parse(form: Form, task: str) -> dict[str, Any]:
    """The fields of a Call that the form decides. Raises InvalidInput."""
    _check(form, _OF_TRANSCRIBE if task == TRANSCRIBE else _FIELDS)
    options: dict[str, Any] = {"task": task}
    if parse_format(form) in _TIMED:
        options["timestamps"] = True
    for name, option in (("language", "language"), ("prompt", "instruction")):
        if value := _field(form, name):
            options[option] = parse_text(value, name)
    return {
        "model": openai.parse_model(_field(form, "model")),
        "items": [{"audio": {"data": _file(form)}}],
        "options": options,
        "paths": {name.removeprefix("options."): place for name, place in _PLACES.items()},
    }


def parse_format(form: Form) -> str:
    value = _field(form, "response_format") or "json"
    if value not in FORMATS:
        wrong = f"response_format must be one of {', '.join(FORMATS)}, not {shown(value)}"
        raise InvalidInput(wrong, param="response_format")
    return value


def _check(form: Form, known: tuple[str, ...]) -> None:
    for name in (*form.fields, *form.files):
        if name not in known:
            where = shown_key(name)
            raise InvalidInput(f"{where} is no field of this route; there are: {', '.join(known)}", param=where)
    if _number(_field(form, "temperature")) != 0:
        wrong = "temperature can be 0 only: models here write the likeliest word"
        raise InvalidInput(wrong, param="temperature")
    if (_field(form, "stream") or "false").lower() != "false":
        raise InvalidInput("stream must be false: a transcript comes whole", param="stream")
    if (_field(form, "chunking_strategy") or "auto") != "auto":
        wrong = "chunking_strategy can be auto only: long sound is cut where it is quiet"
        raise InvalidInput(wrong, param="chunking_strategy")
    granularities = [value for name in _GRANULARITIES for value in form.fields.get(name, ())]
    if any(value != "segment" for value in granularities):
        wrong = "timestamp_granularities can be segment only: words are not timed"
        raise InvalidInput(wrong, param="timestamp_granularities")
    if granularities and parse_format(form) != "verbose_json":
        wrong = "timestamp_granularities needs the response_format verbose_json"
        raise InvalidInput(wrong, param="timestamp_granularities")


def _field(form: Form, name: str) -> str | None:
    values = form.fields.get(name, ())
    if len(values) > 1:
        raise InvalidInput(f"{name} is given {len(values)} times", param=name)
    return values[0] if values else None


def _number(value: str | None) -> float | None:
    try:
        return 0.0 if not value else float(value)
    except ValueError:
        return None


def _file(form: Form) -> bytes:
    files = form.files.get("file", ())
    if len(files) != 1:
        raise InvalidInput(f"file must be one sound file with a name, not {len(files)}", param="file")
    if not files[0]:
        raise InvalidInput("file is empty", param="file")
    return files[0]


def render(outcome: Outcome, response_format: str) -> HttpResponse:
    """Raises the error of the item, where it failed alone."""
    [result] = outcome.results
    if "error" in result:
        raise errors.from_wire(result["error"])
    data, headers = result["data"], {"X-Request-ID": outcome.call.id}
    if response_format in _WRITERS:
        return respond(_WRITERS[response_format](data).encode(), "text/plain; charset=utf-8", headers=headers)
    body = {"text": data["transcript"], "usage": {"type": "duration", "seconds": data["duration_ms"] / 1000}}
    if response_format == "verbose_json":
        body |= _verbose(data, outcome.call.options["task"])
    return respond(native.dumps(body), JSON, headers=headers)


def render_error(error: ShoalError, request_id: str) -> HttpResponse:
    body, headers = openai.error_body(error, request_id, lambda param: _PLACES.get(param, _ITEM.sub("file", param)))
    return json_response(body, error.status, headers)


def _verbose(data: Mapping[str, Any], task: str) -> dict[str, Any]:
    """A translation is in English, whatever was spoken; not every model tells what was."""
    language = "en" if task == TRANSLATE else data.get("language", "unknown")
    return {
        "task": task,
        "language": NAMES.get(language, language),
        "duration": data["duration_ms"] / 1000,
        "segments": [_segment(index, segment) for index, segment in enumerate(data["segments"])],
    }


def _segment(index: int, segment: Mapping[str, Any]) -> dict[str, Any]:
    """Some models tell no chances; their fields are left out."""
    written = segment["text"].encode()
    chances = {"avg_logprob": "avg_logprob", "no_speech": "no_speech_prob"}
    return {
        **{name: segment[own] for own, name in chances.items() if own in segment},
        "id": index,
        "seek": segment["start_ms"] // 10,
        "start": segment["start_ms"] / 1000,
        "end": segment["end_ms"] / 1000,
        "text": segment["text"],
        "tokens": segment["tokens"],
        "temperature": 0.0,
        "compression_ratio": len(written) / len(zlib.compress(written)),
    }


def _text(data: Mapping[str, Any]) -> str:
    return f"{data['transcript']}\n"


def _srt(data: Mapping[str, Any]) -> str:
    return "".join(f"{number}\n{_cue(segment, ',')}" for number, segment in enumerate(data["segments"], 1))


def _vtt(data: Mapping[str, Any]) -> str:
    return "WEBVTT\n\n" + "".join(_cue(segment, ".") for segment in data["segments"])


def _cue(segment: Mapping[str, Any], mark: str) -> str:
    """An arrow in a text would be read as times."""
    text = segment["text"].replace("-->", "->")
    return f"{_clock(segment['start_ms'], mark)} --> {_clock(segment['end_ms'], mark)}\n{text}\n\n"


def _clock(ms: int, mark: str) -> str:
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"


_WRITERS = {"text": _text, "srt": _srt, "vtt": _vtt}
