"""Admin of the catalog: models, LoRAs and pools. Every change goes through the models, which publish the catalog."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter
from unfold.decorators import action, display

from admin import fleet
from admin.forms import DocumentField, EntryForm, as_yaml
from admin.templatetags.console import human_bytes
from catalog.models import LoRA, Pool, RegisteredModel
from protocol.spec import PRIMITIVES

NOT_LOADED = "not loaded"
STATE_LABELS = {
    "loaded": "success",
    "loading": "info",
    "fetching": "info",
    "parked": "info",
    "failed": "danger",
    NOT_LOADED: "default",
}


class PrimitiveFilter(admin.SimpleListFilter):
    title = "primitive"
    parameter_name = "primitive"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(primitive, primitive) for primitive in PRIMITIVES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[RegisteredModel]) -> QuerySet[RegisteredModel]:
        if self.value() not in PRIMITIVES:
            return queryset
        # The column is a JSON list of words from a closed set, so its text says whether one is in it, on any database.
        return queryset.filter(primitives__icontains=f'"{self.value()}"')


class StateFilter(admin.SimpleListFilter):
    title = "state on the fleet"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state) for state in ("loaded", "loading", "parked", "failed", NOT_LOADED)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[RegisteredModel]) -> QuerySet[RegisteredModel]:
        wanted = self.value()
        if wanted is None:
            return queryset
        states = fleet.current().states()
        if wanted == NOT_LOADED:
            return queryset.exclude(name__in=states)
        return queryset.filter(name__in=[model for model, state in states.items() if state == wanted])


@admin.register(RegisteredModel)
class RegisteredModelAdmin(ModelAdmin):
    """Decisions are edited here; what the entry says is read-only, unless the entry was added here too."""

    form = EntryForm
    list_display = ("name", "family", "does", "fleet_state", "enabled", "is_pinned", "in_pool", "fleet_bytes")
    list_filter = (
        "enabled",
        PrimitiveFilter,
        StateFilter,
        ("pool", RelatedDropdownFilter),
        ("source", ChoicesDropdownFilter),
    )
    list_filter_submit = True
    list_select_related = ("pool",)
    list_per_page = 50
    search_fields = ("name", "family", "description")
    actions = ("enable", "disable", "pin", "unpin")
    warn_unsaved_form = True

    _decisions = ("enabled", "pinned", "pool", "max_tokens", "budget", "max_items")
    _copied = ("name", "family", "bundle", "does", "aliases_text", "description", "source", "missing_since", "updated")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            about = "A catalog entry in YAML, as in a file of catalog/entries; docs/catalog.md describes each field."
            return [(None, {"fields": ("entry",), "description": about}), self._decided()]
        if obj.source == RegisteredModel.Source.ADMIN:
            about = "This entry was added here, so it is edited here."
            return [self._decided(), ("The entry", {"fields": ("entry", *self._copied), "description": about})]
        about = "This comes from a catalog file and is read-only here. Change the file, or decide otherwise above."
        return [self._decided(), ("From the file", {"fields": (*self._copied, "document"), "description": about})]

    def _decided(self) -> tuple[str, dict[str, Any]]:
        about = "What you set here wins over the entry and stays when its file is read again."
        return ("Decisions", {"fields": self._decisions, "description": about})

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else (*self._copied, "document")

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "entry":
            needs = "It needs id, family and primitives, and outputs when the model encodes."
            return DocumentField(label="Entry", help_text=needs)
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A model whose file is still there would come back at the next start: disable it instead."""
        is_from_file = obj is not None and obj.source == RegisteredModel.Source.FILE and obj.missing_since is None
        return not is_from_file and super().has_delete_permission(request, obj)

    def get_actions(self, request: HttpRequest) -> Any:
        """Without bulk deletion, which would not ask `has_delete_permission` about each model."""
        return {name: found for name, found in super().get_actions(request).items() if name != "delete_selected"}

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Puts what the fleet says beside each row, read once for the page."""
        changelist = super().get_changelist_instance(request)
        found = fleet.current()
        states, held = found.states(), found.held()
        changelist.result_list = list(changelist.result_list)
        for row in changelist.result_list:
            row.fleet_state = "unknown" if found.problem else states.get(row.name, NOT_LOADED)
            row.fleet_bytes = held.get(row.name, 0)
        return changelist

    @display(description="primitives")
    def does(self, row: RegisteredModel) -> str:
        return ", ".join(row.primitives)

    @display(description="aliases")
    def aliases_text(self, row: RegisteredModel) -> str:
        return ", ".join(row.aliases) or "–"

    @display(description="on the fleet", label=STATE_LABELS)
    def fleet_state(self, row: Any) -> str:
        return str(row.fleet_state)

    @display(description="bytes")
    def fleet_bytes(self, row: Any) -> str:
        return human_bytes(row.fleet_bytes) if row.fleet_bytes else "–"

    @display(description="pinned", label="primary")
    def is_pinned(self, row: RegisteredModel) -> str:
        return "pinned" if (row.entry.get("pinned") if row.pinned is None else row.pinned) else ""

    @display(description="pool", ordering="pool")
    def in_pool(self, row: RegisteredModel) -> str:
        return row.pool.name if row.pool else str(row.entry.get("pool", "default"))

    @display(description="document")
    def document(self, row: RegisteredModel) -> str:
        return format_html("<pre>{}</pre>", as_yaml(row.entry))

    @action(description="Enable", permissions=["change"])
    def enable(self, request: HttpRequest, chosen: QuerySet[RegisteredModel]) -> None:
        self._decide(request, chosen, "enabled", enabled=True)

    @action(description="Disable: callers get 404", permissions=["change"])
    def disable(self, request: HttpRequest, chosen: QuerySet[RegisteredModel]) -> None:
        self._decide(request, chosen, "disabled", enabled=False)

    @action(description="Pin: keep on the device", permissions=["change"])
    def pin(self, request: HttpRequest, chosen: QuerySet[RegisteredModel]) -> None:
        self._decide(request, chosen, "pinned", pinned=True)

    @action(description="Unpin: may be evicted", permissions=["change"])
    def unpin(self, request: HttpRequest, chosen: QuerySet[RegisteredModel]) -> None:
        self._decide(request, chosen, "unpinned", pinned=False)

    def _decide(self, request: HttpRequest, chosen: QuerySet[RegisteredModel], done: str, **decision: bool) -> None:
        rows = list(chosen)
        for row in rows:
            for name, value in decision.items():
                setattr(row, name, value)
            row.save(update_fields=[*decision, "updated"])
            self.log_change(request, row, [{"changed": {"fields": list(decision)}}])
        self.message_user(request, f"{len(rows)} model{'' if len(rows) == 1 else 's'} {done}.")


@admin.register(LoRA)
class LoRAAdmin(ModelAdmin):
    list_display = ("name", "base", "weights", "enabled", "updated")
    list_filter = ("enabled", ("base", RelatedDropdownFilter))
    list_filter_submit = True
    list_select_related = ("base",)
    search_fields = ("name", "base__name", "repo", "description")
    autocomplete_fields = ("base",)
    fieldsets = (
        (None, {"fields": ("name", "base", "enabled", "description")}),
        ("Weights", {"fields": ("repo", "revision", "folder"), "description": "A hub id or a folder, one of the two."}),
    )

    @display(description="weights from")
    def weights(self, row: LoRA) -> str:
        return row.folder or (f"{row.repo}@{row.revision}" if row.revision else row.repo)


@admin.register(Pool)
class PoolAdmin(ModelAdmin):
    list_display = ("name", "description", "model_count", "workers_up")
    search_fields = ("name", "description")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pool]:
        return super().get_queryset(request).annotate(moved_here=Count("registeredmodel"))

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist = super().get_changelist_instance(request)
        workers = fleet.current().workers
        changelist.result_list = list(changelist.result_list)
        for row in changelist.result_list:
            row.workers_up = sum(worker.pool == row.name for worker in workers)
        return changelist

    @display(description="models moved here")
    def model_count(self, row: Any) -> int:
        return int(row.moved_here)

    @display(description="workers up")
    def workers_up(self, row: Any) -> int:
        return int(row.workers_up)
