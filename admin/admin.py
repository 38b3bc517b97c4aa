"""What Django's autodiscovery imports: the modules that register every admin."""

from admin import access, curation

__all__ = ["access", "curation"]
