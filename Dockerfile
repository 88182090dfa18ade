# One image: web, worker and beat run the same code. Its torch is CUDA's, so the trainer of profile `gpu` uses it too.
FROM python:3.13-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 FLYWHEEL_HOME=/data
RUN useradd --create-home --uid 10001 flywheel && mkdir /data && chown flywheel /data
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY flywheel flywheel
COPY workers workers
COPY templates templates
COPY static static
COPY docs docs
COPY manage.py ./

FROM base AS server
RUN pip install -c constraints.txt -e '.[train,qlora,redis,grpc]'
USER flywheel
VOLUME /data
EXPOSE 8000 4317
CMD ["python", "-m", "gunicorn", "flywheel.wsgi", "--config", "python:flywheel.server.gunicorn_settings", "--bind", "0.0.0.0:8000"]
