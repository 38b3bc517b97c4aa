"""Encode from any program that has Celery, with nothing of ours: `python examples/plain_celery.py`.

SHOAL_REDIS_URL (and SHOAL_BROKER_URL, where the broker is another server) say where; docs/plain-celery.md shows where
`./shoal serve` keeps them.
"""

import os

from celery import Celery

redis = os.environ.get("SHOAL_REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery(broker=os.environ.get("SHOAL_BROKER_URL", redis), backend=redis)
result = app.send_task(
    "shoal.encode",
    kwargs={
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "items": [{"text": "Sent without an HTTP request."}],
        "options": {},
    },
    queue="shoal",
    argsrepr="(one text)",  # what Celery's logs and Flower show instead of the text itself
    kwargsrepr="{}",
)
print(result.id, result.get(timeout=120)["items"][0]["dense"]["values"][:3])
