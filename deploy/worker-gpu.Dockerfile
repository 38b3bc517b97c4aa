# A device worker on an NVIDIA card, with the `sglang` bundle in an environment of its own. The CUDA compiler stays in
# the image: sglang and flash-attn compile kernels. Built from the checkout's root:
#   docker build -f deploy/worker-gpu.Dockerfile -t shoal-worker-gpu .
FROM nvidia/cuda:13.0.2-cudnn-devel-ubuntu24.04

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv python3-dev build-essential ninja-build \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 shoal \
    && install -d -o shoal -g shoal /data /models
WORKDIR /app

COPY requirements/ requirements/
RUN python3 -m venv /opt/base && /opt/base/bin/pip install --no-cache-dir -r requirements/worker.txt
# torch first: flash-attn compiles against it.
RUN python3 -m venv /opt/sglang \
    && /opt/sglang/bin/pip install --no-cache-dir wheel packaging "$(grep '^torch==' requirements/gpu.txt)" \
    && /opt/sglang/bin/pip install --no-cache-dir --no-build-isolation -r requirements/gpu.txt -r requirements/base.txt

COPY project/ project/
COPY protocol/ protocol/
COPY catalog/ catalog/
COPY workers/ workers/
COPY admin/ admin/

USER shoal
ENV PATH=/opt/base/bin:$PATH SHOAL_DATA=/data HF_HOME=/models
CMD ["python", "-m", "project.cli", "worker", "--device", "cuda"]
