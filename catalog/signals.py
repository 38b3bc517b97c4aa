"""Whoever changes the catalog or a key, in the admin, the API or a shell: followers hear of it after the commit."""

from typing import Any

from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from catalog import issuing, registry
from catalog.models import ApiKey, LoRA, Pool, RegisteredModel


@receiver((post_save, post_delete), sender=RegisteredModel)
@receiver((post_save, post_delete), sender=LoRA)
@receiver((post_save, post_delete), sender=Pool)
def publish_catalog(**event: Any) -> None:
    registry.publish_on_commit()


@receiver((post_save, post_delete), sender=ApiKey)
def announce_keys(**event: Any) -> None:
    issuing.announce_on_commit()
