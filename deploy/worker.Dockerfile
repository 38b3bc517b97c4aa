# A device worker on a CPU, or on a GPU for what needs no sglang. Built from the checkout's root:
#   docker build -f deploy/worker.Dockerfile -t shoal-worker .
# Bundles, environments that some models need (docs/bundles.md), are installed when named:
#   --build-arg BUNDLES="transformers4"
# On Linux the package index's torch is the CUDA build; an index of CPU builds makes the image some gigabytes smaller:
#   --build-arg EXTRA_INDEX_URL=…
FROM python:3.11-slim

ARG EXTRA_INDEX_URL=""
ARG BUNDLES=""
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --create-home --uid 10001 shoal && install -d -o shoal -g shoal /data /models
WORKDIR /app

COPY requirements/ requirements/
RUN PIP_EXTRA_INDEX_URL="$EXTRA_INDEX_URL" pip install --no-cache-dir -r requirements/worker.txt

COPY project/ project/
COPY protocol/ protocol/
COPY catalog/ catalog/
COPY workers/ workers/
# `status`, the health check, reads the fleet as the admin does.
COPY admin/ admin/

ENV SHOAL_BUNDLES=/opt/bundles
RUN for bundle in $BUNDLES; do python -m project.cli bundle install "$bundle" || exit 1; done

USER shoal
ENV SHOAL_DATA=/data HF_HOME=/models
CMD ["python", "-m", "project.cli", "worker"]
