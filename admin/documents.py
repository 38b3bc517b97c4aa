"""An entry document in a form: YAML in a text area, checked by the catalog's own loader."""

from typing import Any

import yaml
from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminTextareaWidget

from catalog import loader
from catalog.models import RegisteredModel
from catalog.schema import EntryError


def as_yaml(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


class DocumentField(forms.CharField):
    """Shows a document as YAML, and reads YAML or JSON back."""

    widget = UnfoldAdminTextareaWidget(attrs={"rows": 16, "spellcheck": "false", "class": "console-document"})

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
    entry = DocumentField(
        label="Entry",
        help_text="A fresh entry needs id, family, primitives and, when it encodes, outputs.",
    )

    class Meta:
        model = RegisteredModel
        fields = "__all__"

    def add_error(self, field: str | None, error: Any) -> None:
        """An error about a read-only field has no place of its own in the form, so it goes to the top."""
        for name, errors in getattr(error, "error_dict", {field: error}).items():
            super().add_error(name if name in self.fields else None, errors)
