# Images: `--target api` (without torch and onnxruntime), `--target worker` (CPU) and `--target worker-gpu` (CUDA).
# Their bills of materials, in CycloneDX: docker build --target sbom --output sbom .
# Base images by digest: --build-arg DEBIAN=debian:12-slim@sha256:... (docs/deploy.md, "Images").
ARG DEBIAN=debian:12-slim
ARG DISTROLESS=gcr.io/distroless/python3-debian12

# Debian's Python 3.11, which is that of the distroless image, too.
FROM ${DEBIAN} AS base
ENV PYTHONUNBUFFERED=1 \
    PATH=/opt/quantmill/bin:$PATH \
    HOME=/data \
    QUANTMILL_DATA_DIR=/data
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --home-dir /data --no-create-home quantmill \
    && install --directory --mode=0700 --owner=quantmill --group=quantmill /data /data/store /data/scratch /data/cache /data/checkpoints
WORKDIR /data

# COPY takes the mode of a folder's contents, not its own.
FROM base AS home
RUN mkdir /root/home && cp --archive /data /root/home/

FROM base AS source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && python3 -m venv /opt/quantmill
COPY pyproject.toml README.md LICENSE requirements-*.lock /src/
COPY quantmill /src/quantmill
COPY service /src/service
COPY worker /src/worker
COPY migrations /src/migrations

# The guide, which the API server has at /guide.
FROM source AS guide
COPY zensical.toml /src/
COPY docs /src/docs
RUN python3 -m venv /opt/guide \
    && /opt/guide/bin/pip install --require-hashes --no-deps --requirement /src/requirements-guide.lock \
    && cd /src && /opt/guide/bin/zensical build --strict

# Only what the lock files name, by hash; setuptools, which builds the project, is among it.
# What no process needs is left out: installers, tests of packages, and bytecode, which the first start writes to /tmp.
FROM source AS build-api
COPY --from=guide /src/service/docs/site /src/service/docs/site
RUN pip install --no-compile --require-hashes --no-deps --requirement /src/requirements-api.lock \
    && pip install --no-compile --no-deps --no-build-isolation /src \
    && pip check \
    && pip uninstall --yes setuptools pip \
    && find /opt/quantmill -type d '(' -name __pycache__ -o -name test -o -name tests ')' -prune -exec rm -rf '{}' +

# Bytecode stays: a runner starts with each job, and nothing that it could write to is read as code.
FROM source AS build-worker
# The CPU build of torch; the one on PyPI brings several gigabytes of CUDA libraries. (PyPI's for arm64 is taken there.)
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --extra-index-url ${TORCH_INDEX} --require-hashes --no-deps --requirement /src/requirements-cpu.lock \
    && pip install --require-hashes --no-deps --requirement /src/requirements-worker.lock \
    && pip install --no-deps --no-build-isolation /src \
    && pip check \
    && pip uninstall --yes setuptools pip

# PyPI's build of torch with CUDA's libraries; the driver is the host's. onnxruntime is the CPU's build here, too.
FROM source AS build-worker-gpu
RUN pip install --require-hashes --no-deps --requirement /src/requirements-worker.lock \
    && pip install --require-hashes --no-deps --requirement /src/requirements-cuda.lock \
    && pip install --no-deps --no-build-isolation /src \
    && pip check \
    && pip uninstall --yes setuptools pip

FROM source AS bills
COPY tools/sbom.py /src/tools/sbom.py
COPY --from=build-api /opt/quantmill /images/quantmill-api
COPY --from=build-worker /opt/quantmill /images/quantmill-worker
COPY --from=build-worker-gpu /opt/quantmill /images/quantmill-worker-gpu
RUN mkdir /sbom && for image in /images/*; do \
        python3 /src/tools/sbom.py "$image"/lib/python3*/site-packages > "/sbom/$(basename "$image").cdx.json" || exit 1; done

FROM scratch AS sbom
COPY --from=bills /sbom /

# Without a shell.
FROM ${DISTROLESS} AS api
ENV PYTHONUNBUFFERED=1 \
    PYTHONPYCACHEPREFIX=/tmp/bytecode \
    PATH=/opt/quantmill/bin:$PATH \
    HOME=/data \
    QUANTMILL_DATA_DIR=/data
COPY --from=base /etc/passwd /etc/group /etc/
COPY --from=home --chown=10001:10001 /root/home /
COPY --from=build-api /opt/quantmill /opt/quantmill
WORKDIR /data
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["quantmill"]
CMD ["api", "--host", "0.0.0.0", "--port", "8000"]

FROM base AS worker
COPY --from=build-worker /opt/quantmill /opt/quantmill
USER 10001:10001
HEALTHCHECK --interval=60s --timeout=20s --start-period=30s --retries=3 CMD ["quantmill", "doctor", "--no-engine"]
ENTRYPOINT ["quantmill"]
CMD ["worker"]

FROM base AS worker-gpu
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-worker-gpu /opt/quantmill /opt/quantmill
USER 10001:10001
HEALTHCHECK --interval=60s --timeout=20s --start-period=30s --retries=3 CMD ["quantmill", "doctor", "--no-engine"]
ENTRYPOINT ["quantmill"]
CMD ["worker", "--queues", "gpu"]
