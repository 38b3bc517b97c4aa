# The gateway, the admin site, Flower and the ops worker: no torch. Built from the checkout's root:
#   docker build -f deploy/gateway.Dockerfile -t shoal-gateway .
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --create-home --uid 10001 shoal && install -d -o shoal -g shoal /data
WORKDIR /app

COPY requirements/ requirements/
RUN pip install --no-cache-dir -r requirements/gateway.txt

COPY project/ project/
COPY protocol/ protocol/
COPY catalog/ catalog/
COPY inference/ inference/
COPY admin/ admin/

USER shoal
ENV SHOAL_DATA=/data
EXPOSE 8080
CMD ["python", "-m", "project.cli", "gateway", "--host", "0.0.0.0", "--port", "8080"]
