# Two images from one file: `--target api` (the API server, without torch and onnxruntime) and `--target worker` (with the engine).
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/quantmill/bin:$PATH \
    QUANTMILL_DATA_DIR=/data
RUN useradd --uid 10001 --create-home quantmill \
    && install --directory --owner=quantmill --group=quantmill /data /data/store /data/scratch /data/cache /data/checkpoints
WORKDIR /data

FROM base AS source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/quantmill
COPY pyproject.toml README.md LICENSE requirements-*.lock /src/
COPY quantmill /src/quantmill
COPY service /src/service
COPY worker /src/worker
COPY migrations /src/migrations

# The guide, which the API server has at /guide.
FROM source AS guide
COPY zensical.toml /src/
COPY docs /src/docs
RUN python -m venv /opt/guide \
    && /opt/guide/bin/pip install --require-hashes --no-deps --requirement /src/requirements-guide.lock \
    && cd /src && /opt/guide/bin/zensical build --strict

# Only what the lock files name, by hash; setuptools, which builds the project, is among it.
FROM source AS build-api
COPY --from=guide /src/service/docs/site /src/service/docs/site
RUN pip install --require-hashes --no-deps --requirement /src/requirements-api.lock \
    && pip install --no-deps --no-build-isolation /src \
    && pip check

FROM source AS build-worker
# The CPU build of torch; the one on PyPI brings several gigabytes of CUDA libraries. (PyPI's for arm64 is taken there.)
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --extra-index-url ${TORCH_INDEX} --require-hashes --no-deps --requirement /src/requirements-cpu.lock \
    && pip install --require-hashes --no-deps --requirement /src/requirements-worker.lock \
    && pip install --no-deps --no-build-isolation /src \
    && pip check

FROM base AS api
COPY --from=build-api /opt/quantmill /opt/quantmill
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["quantmill"]
CMD ["api", "--host", "0.0.0.0", "--port", "8000"]

FROM base AS worker
COPY --from=build-worker /opt/quantmill /opt/quantmill
USER 10001
HEALTHCHECK --interval=60s --timeout=20s --start-period=30s --retries=3 CMD ["quantmill", "doctor", "--no-engine"]
ENTRYPOINT ["quantmill"]
CMD ["worker"]
