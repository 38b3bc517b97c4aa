"""The admin's pages on dead letters: which requests were given up on, why, and what to do with them.

What a caller sent is shown only to who may change models and asks for it, one letter at a time; the log says who did.
"""

import json
import logging
from typing import Any, cast

import redis
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.views.decorators.http import require_POST

from admin.connections import state
from inference.dead_letters import PAGE, DeadLetters
from protocol.errors import ShoalError

log = logging.getLogger("shoal.admin")

_may_view = permission_required("catalog.view_registeredmodel", raise_exception=True)
_MAY_CHANGE = "catalog.change_registeredmodel"
_may_change = permission_required(_MAY_CHANGE, raise_exception=True)

SHOWN_CHARACTERS = 20_000


def store() -> DeadLetters:
    return DeadLetters(state(), settings.SHOAL_BROKER_URL, settings.SHOAL_TASK_TTL_S)


@_may_view
def letters(request: HttpRequest) -> HttpResponse:
    context: dict[str, Any] = {**admin.site.each_context(request), "title": "Dead letters", "page": PAGE}
    try:
        context |= {"letters": store().newest(), "count": store().count()}
    except redis.RedisError as error:
        context["problem"] = f"Redis does not answer ({type(error).__name__}), so dead letters are not known."
    context["may_change"] = cast(User, request.user).has_perm(_MAY_CHANGE)
    return TemplateResponse(request, "console/dead_letters.html", context)


@_may_view
def letter(request: HttpRequest, letter_id: str) -> HttpResponse:
    """With `?payload=1` also what the caller sent."""
    may_change = cast(User, request.user).has_perm(_MAY_CHANGE)
    try:
        found = store().get(letter_id)
        if found is None:
            raise Http404("There is no such dead letter.")
        payload = _payload(request, letter_id) if may_change and request.GET.get("payload") == "1" else None
    except redis.RedisError as error:
        messages.error(request, f"Redis does not answer ({type(error).__name__}).")
        return redirect("dead-letters")
    context = {
        **admin.site.each_context(request),
        "title": "Dead letter",
        "letter": found,
        "payload": payload,
        "may_change": may_change,
    }
    return TemplateResponse(request, "console/dead_letter.html", context)


def _payload(request: HttpRequest, letter_id: str) -> str:
    log.warning("payload of a dead letter shown", extra={"user": str(request.user), "request_id": letter_id})
    text = json.dumps(store().payload(letter_id), indent=2, ensure_ascii=False, default=_said)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}\n… {len(text)} characters in all"


def _said(value: object) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else f"<{type(value).__name__}>"


@require_POST
@_may_change
def act(request: HttpRequest) -> HttpResponse:
    """Replay or drop those that were ticked."""
    ids = request.POST.getlist("id")[:PAGE]
    try:
        if request.POST.get("action") == "drop":
            messages.success(request, f"{_counted(store().drop(ids))} dropped.")
        else:
            _replay(request, ids)
    except (redis.RedisError, ShoalError) as error:
        why = error.message if isinstance(error, ShoalError) else f"Redis does not answer ({type(error).__name__})."
        messages.error(request, why)
    return redirect("dead-letters")


def _replay(request: HttpRequest, ids: list[str]) -> None:
    outcome = store().replay(ids)
    log.info("dead letters sent again", extra={"user": str(request.user), "count": len(ids)})
    sent = [letter_id for letter_id, problem in outcome.items() if not problem]
    if sent:
        messages.success(request, f"{_counted(len(sent))} sent again; results are kept under the old ids.")
    for letter_id, problem in outcome.items():
        if problem:
            messages.warning(request, f"{letter_id}: {problem}.")


def _counted(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"
