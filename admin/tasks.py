"""The admin's page on tasks: what was accepted with 202 lately, in which state it is, and how to cancel it."""

from typing import Any, cast

import redis
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.views.decorators.http import require_POST

from admin.connections import state
from inference import task_list
from protocol import names
from protocol.errors import ShoalError

STATES = ("queued", "running", "succeeded", "failed", "cancelled", "expired")
_MAY_CHANGE = "catalog.change_registeredmodel"


@permission_required("catalog.view_registeredmodel", raise_exception=True)
def tasks(request: HttpRequest) -> HttpResponse:
    wanted = request.GET.get("state", "")
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Tasks",
        "states": STATES,
        "wanted": wanted if wanted in STATES else "",
        "may_change": cast(User, request.user).has_perm(_MAY_CHANGE),
        "looked_at": task_list.LOOKED_AT,
    }
    try:
        context["tasks"] = task_list.newest(state(), context["wanted"])
    except redis.RedisError as error:
        context["problem"] = f"Redis does not answer ({type(error).__name__}), so tasks are not known."
    return TemplateResponse(request, "console/tasks.html", context)


@require_POST
@permission_required(_MAY_CHANGE, raise_exception=True)
def cancel(request: HttpRequest) -> HttpResponse:
    task_id = request.POST.get("id", "")
    try:
        found: Any = state().hget(names.task(task_id), "key")
        key = (found or b"").decode(errors="replace")
        task_list.cancel(settings.SHOAL_REDIS_URL, task_id, key, settings.SHOAL_TASK_TTL_S)
        messages.success(request, "1 task cancelled.")
    except ShoalError as error:
        messages.error(request, error.message)
    except redis.RedisError as error:
        messages.error(request, f"Redis does not answer ({type(error).__name__}).")
    return redirect("tasks")
