"""The admin's forms: an entry document as YAML checked by the catalog's own loader, and a key's permissions."""

from typing import Any

import yaml
from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelect2MultipleWidget,
    UnfoldAdminTextareaWidget,
)

from catalog import loader
from catalog.models import ApiKey, RegisteredModel
from catalog.schema import EntryError
from protocol.spec import PRIMITIVES

LIMITS = ("max_tokens", "budget", "max_items")


def as_yaml(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


class DocumentField(forms.CharField):
    """Shows a document as YAML, and reads YAML or JSON back."""

    widget = UnfoldAdminTextareaWidget(attrs={"rows": 16, "spellcheck": "false", "data-document": ""})

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) or value is None else as_yaml(value)

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        if not text:
            return None
        try:
            return loader.read(text)
        except EntryError as error:
            raise ValidationError(error.problems) from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(self.to_python(data) != initial)
        except ValidationError:
            return True


class EntryForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic when it runs
    """A model's entry and the decisions about it. A limit left empty shows what the entry says."""

    class Meta:
        model = RegisteredModel
        fields = "__all__"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        document = self.instance.entry if self.instance.pk else {}
        for name in self.fields.keys() & LIMITS:
            self.fields[name].widget.attrs["placeholder"] = document.get(name, "")
        if "pinned" in self.fields:
            pinned: Any = self.fields["pinned"].widget
            pinned.choices = [("unknown", "As the entry says"), ("true", "Yes"), ("false", "No")]

    def add_error(self, field: str | None, error: Any) -> None:
        """An error about a read-only field has no place of its own in the form, so it goes to the top."""
        for name, errors in getattr(error, "error_dict", {field: error}).items():
            super().add_error(name if name in self.fields else None, errors)


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic when it runs
    """What a key permits, chosen from what there is. A model that is gone stays choosable where it was chosen."""

    primitives = forms.MultipleChoiceField(
        choices=[(primitive, primitive) for primitive in PRIMITIVES],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        required=False,
        help_text="What it may call. None chosen: everything.",
    )
    allowed_models = forms.MultipleChoiceField(
        widget=UnfoldAdminSelect2MultipleWidget,
        required=False,
        help_text="Models it may call. None chosen: all.",
    )

    class Meta:
        model = ApiKey
        fields = "__all__"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = {*RegisteredModel.objects.values_list("name", flat=True), *self.instance.allowed_models}
        models: Any = self.fields["allowed_models"]
        models.choices = [(name, name) for name in sorted(names)]
