"""Admin of who may call: API keys, what they used, and the people who may log in here."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import BooleanRadioFilter
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from admin.forms import KeyForm
from catalog import issuing
from catalog.models import ApiKey, Usage

STATE_LABELS = {"active": "success", "expired": "warning", "revoked": "danger"}


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    """A key's secret is on one page once, and its hash on none."""

    form = KeyForm
    list_display = ("name", "prefix", "state", "lane", "is_admin", "last_used", "expires", "created")
    list_filter = (("is_admin", BooleanRadioFilter),)
    search_fields = ("name", "prefix")
    actions = ("revoke",)
    actions_submit_line = ("revoke_this",)
    show_full_result_count = False
    _decided = ("name", "primitives", "allowed_models", "lane", "is_admin", "expires")

    def get_fieldsets(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        about = "" if obj else "The secret is shown once, on the next page."
        sections: list[Any] = [(None, {"fields": self._decided, "description": about})]
        if obj is not None:
            sections.append(("Key", {"fields": ("prefix", "state", "revoked", "last_used", "created")}))
        return sections

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        return ("prefix", "state", "revoked", "last_used", "created")

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """A revoked key stays, so that what it used keeps its name."""
        return False

    def save_model(self, request: Any, obj: ApiKey, form: Any, change: bool) -> None:
        if not change:
            request.new_key = issuing.issue(obj)
        super().save_model(request, obj, form, change)

    def response_add(self, request: Any, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:
        """Shows the secret in the answer itself: a redirect would have to store it somewhere."""
        context = {
            **self.admin_site.each_context(request),
            "title": "API key created",
            "opts": self.opts,
            "key": obj,
            "secret": request.new_key,
        }
        return TemplateResponse(request, "console/key_created.html", context)

    @display(description="state", label=STATE_LABELS)
    def state(self, row: ApiKey) -> str:
        return row.state(timezone.now())

    @action(description="Revoke", permissions=["change"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiKey]) -> None:
        rows = [row for row in chosen if row.revoked is None]
        for row in rows:
            self._revoke(request, row)
        self.message_user(request, f"{len(rows)} key{'' if len(rows) == 1 else 's'} revoked.")

    @action(description="Revoke", permissions=["change"], variant=ActionVariant.DANGER)
    def revoke_this(self, request: HttpRequest, row: ApiKey) -> None:
        self._revoke(request, row)

    def _revoke(self, request: HttpRequest, row: ApiKey) -> None:
        issuing.revoke(row, timezone.now())
        self.log_change(request, row, "Revoked.")


@admin.register(Usage)
class UsageAdmin(ModelAdmin):
    """What was used, counted by the gateways; nobody edits it."""

    list_display = ("day", "key_name", "model", "items", "tokens")
    list_display_links = None
    list_filter = ("key", "model")
    search_fields = ("key", "model")
    date_hierarchy = "day"
    show_full_result_count = False

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Puts the names of the keys beside their prefixes: the rows have no foreign key, as they outlive keys."""
        changelist = super().get_changelist_instance(request)
        changelist.result_list = list(changelist.result_list)
        prefixes = {row.key for row in changelist.result_list}
        named = dict(ApiKey.objects.filter(prefix__in=prefixes).values_list("prefix", "name"))
        for row in changelist.result_list:
            row.key_name = f"{named[row.key]} ({row.key})" if row.key in named else row.key or "no key"
        return changelist

    @display(description="key", ordering="key")
    def key_name(self, row: Any) -> str:
        return str(row.key_name)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Usage | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Usage | None = None) -> bool:
        return False


# Importing django.contrib.auth.admin registered Django's own two, which do not know Unfold.
admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]  # not generic when it runs
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):
    pass
