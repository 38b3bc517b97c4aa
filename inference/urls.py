"""The hot routes. Everything else, the admin and the management API, is in `project.urls`."""

from django.urls import path

from inference.views import audio, calls, models, probes, queues, rerank, tasks

urlpatterns = [
    path("v1/encode/<path:model>", calls.encode),
    path("v1/score/<path:model>", calls.score),
    path("v1/extract/<path:model>", calls.extract),
    path("v1/embeddings", calls.embeddings),
    path("v1/audio/transcriptions", audio.transcribe),
    path("v1/audio/translations", audio.translate),
    path("v1/rerank", rerank.rerank),
    path("v2/rerank", rerank.rerank_v2),
    path("rerank", rerank.tei_rerank),
    path("embed", rerank.tei_embed),
    path("v1/tasks", tasks.tasks),
    path("v1/tasks/<str:task_id>", tasks.task),
    path("v1/models", models.models),
    path("v1/models/<path:model>", models.model),
    path("v1/queues", queues.queues),
    path("healthz", probes.healthz),
    path("livez", probes.livez),
    path("readyz", probes.readyz),
    path("health", probes.health),
    path("metrics", probes.metrics),
    path("", probes.root),
]
