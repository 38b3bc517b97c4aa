"""What the database holds of the catalog: models, LoRAs, pools, API keys and their usage.

What a file says and what an administrator decided never share a column: `entry` is the document, and the columns that
may override it are empty until somebody fills them. So reading the files again cannot undo a decision.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models

from catalog import schema
from catalog.snapshot import Model as CatalogModel
from protocol import names
from protocol.spec import PRIMITIVES

_POOL_NAME = RegexValidator(
    schema.POOL_NAME, "Use lower-case letters, digits, dashes and underscores; begin with a letter or digit."
)
_AT_LEAST_ONE = [MinValueValidator(1)]


class Pool(models.Model):
    """A named group of workers."""

    name = models.CharField(max_length=50, unique=True, validators=[_POOL_NAME])
    description = models.TextField(blank=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class RegisteredModel(models.Model):
    """One catalog entry, with what administrators decided about it; an empty decision means "as the entry says"."""

    class Source(models.TextChoices):
        FILE = "file", "a file"
        ADMIN = "admin", "the admin or the API"

    entry = models.JSONField(help_text="The entry document, as in a catalog file.")
    source = models.CharField(max_length=8, choices=Source, default=Source.ADMIN, editable=False)
    missing_since = models.DateTimeField(null=True, blank=True, editable=False)  # its file is gone

    # Copied from the entry whenever it changes, to list and search by
    COPIED = ("name", "family", "bundle", "primitives", "aliases", "description")
    name = models.CharField(max_length=150, unique=True, editable=False)
    family = models.CharField(max_length=50, editable=False)
    bundle = models.CharField(max_length=50, editable=False)
    primitives = models.JSONField(default=list, editable=False)
    aliases = models.JSONField(default=list, editable=False)
    description = models.TextField(blank=True, editable=False)

    # Decisions
    enabled = models.BooleanField(default=True, help_text="Callers can use it.")
    pinned = models.BooleanField(null=True, blank=True, help_text="Kept on its device. Empty: as the entry says.")
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, blank=True, help_text="Empty: as the entry says.")
    max_tokens = models.PositiveIntegerField(
        null=True, blank=True, validators=_AT_LEAST_ONE, help_text="Longest input. Empty: as the entry says."
    )
    budget = models.PositiveIntegerField(
        null=True, blank=True, validators=_AT_LEAST_ONE, help_text="Cost of one batch. Empty: as the entry says."
    )
    max_items = models.PositiveIntegerField(
        null=True, blank=True, validators=_AT_LEAST_ONE, help_text="Items in one batch. Empty: as the entry says."
    )

    created = models.DateTimeField(auto_now_add=True)
    updated = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name",)
        verbose_name = "model"

    def __str__(self) -> str:
        return self.name

    @property
    def is_served(self) -> bool:
        return self.enabled and self.missing_since is None

    def set_entry(self, document: dict[str, Any]) -> None:
        """Take over a document; raises EntryError when it is not valid."""
        model = schema.parse(document)
        self.entry = document
        self.name = model.spec.model
        self.family = model.spec.family
        self.bundle = model.spec.bundle
        self.primitives = list(model.spec.primitives)
        self.aliases = list(model.aliases)
        self.description = model.description

    def effective(self) -> CatalogModel:
        """The entry with the decisions applied; raises EntryError when the stored entry is not valid any more."""
        model = schema.parse(self.entry)
        decided: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "budget": self.budget,
            "max_items": self.max_items,
            "pool": self.pool.name if self.pool else None,
        }
        spec = replace(model.spec, **{name: value for name, value in decided.items() if value is not None})
        return replace(model, spec=spec, pinned=model.pinned if self.pinned is None else self.pinned)

    def clean(self) -> None:
        """Checks the document, its names against all other models, and the limits against the document."""
        try:
            self.set_entry(self.entry)
        except schema.EntryError as error:
            raise ValidationError({"entry": error.problems}) from None
        taken = names_in_use(exclude=self.pk)
        problems = [f"{name!r} already names {taken[name]}." for name in (self.name, *self.aliases) if name in taken]
        if problems:
            raise ValidationError({"entry": problems})
        longest = schema.parse(self.entry).spec.max_tokens
        if self.max_tokens and longest and self.max_tokens > longest:
            raise ValidationError({"max_tokens": f"The model reads {longest} tokens at most."})


def names_in_use(exclude: int | None = None) -> dict[str, str]:
    """Every id and alias in the database, with the model it belongs to."""
    rows = RegisteredModel.objects.values_list("pk", "name", "aliases")
    return {taken: name for pk, name, aliases in rows if pk != exclude for taken in (name, *aliases)}


class LoRA(models.Model):
    """Fine-tuned weights on top of a registered model."""

    name = models.CharField(max_length=50, unique=True, validators=[RegexValidator(schema.PROFILE_NAME)])
    base = models.ForeignKey(RegisteredModel, models.CASCADE, related_name="loras")
    repo = models.CharField(max_length=200, blank=True, help_text="Hub id of the weights.")
    revision = models.CharField(max_length=64, blank=True)
    folder = models.CharField(max_length=500, blank=True, help_text="Absolute path, instead of a hub id.")
    description = models.TextField(blank=True)
    enabled = models.BooleanField(default=True)
    created = models.DateTimeField(auto_now_add=True)
    updated = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name",)
        verbose_name = "LoRA"
        verbose_name_plural = "LoRAs"

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if bool(self.repo) == bool(self.folder):
            raise ValidationError("Give a hub id or a folder, one of the two.")
        if self.folder and not self.folder.startswith("/"):
            raise ValidationError({"folder": "Give an absolute path."})


def known_primitives(value: Any) -> None:
    if not isinstance(value, list) or any(primitive not in PRIMITIVES for primitive in value):
        raise ValidationError(f"Give a list of {', '.join(PRIMITIVES)}.")


def list_of_names(value: Any) -> None:
    if not isinstance(value, list) or any(not isinstance(name, str) or not name for name in value):
        raise ValidationError("Give a list of model names.")


class ApiKey(models.Model):
    """One API key. The secret itself is shown once and kept nowhere; `digest` is its SHA-256."""

    LANES: ClassVar = [(lane, lane) for lane in names.LANES]

    name = models.CharField(max_length=100, help_text="Who or what uses it.")
    prefix = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    primitives = models.JSONField(
        default=list, blank=True, validators=[known_primitives], help_text="What it may call. Empty: everything."
    )
    allowed_models = models.JSONField(
        default=list, blank=True, validators=[list_of_names], help_text="Models it may call. Empty: all."
    )
    lane = models.CharField(max_length=16, choices=LANES, default=names.LANES[0], help_text="Where a call names none.")
    is_admin = models.BooleanField("admin", default=False, help_text="May use the management API.")
    expires = models.DateTimeField(null=True, blank=True)
    revoked = models.DateTimeField(null=True, blank=True)
    last_used = models.DateTimeField(null=True, blank=True, editable=False)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created",)
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})"

    def state(self, now: datetime) -> str:
        if self.revoked:
            return "revoked"
        return "expired" if self.expires and self.expires <= now else "active"


class Usage(models.Model):
    """What one key used of one model on one day. Kept by the key's prefix, so that it outlives the key."""

    key = models.CharField(max_length=16, blank=True)  # empty: called without a key
    model = models.CharField(max_length=150)
    day = models.DateField()
    items = models.PositiveBigIntegerField(default=0)
    tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ("-day", "key", "model")
        verbose_name_plural = "usage"
        constraints: ClassVar = [models.UniqueConstraint(fields=("key", "model", "day"), name="one_usage_row")]

    def __str__(self) -> str:
        return f"{self.key or 'no key'}, {self.model}, {self.day:%Y-%m-%d}"
