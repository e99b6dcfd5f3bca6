# The operator's image. `make image` builds it; docs/decisions/0007-image.md says why it is so.
#
# BASE_IMAGE is what it runs on: any Linux with Python 3.11 or newer, with or without a shell.
# BUILD_IMAGE is what it is built on: a shell, Python of the same version at the same path, and venv
# with pip. `make image` requires both by digest, unless ALLOW_TAG=1.
ARG BASE_IMAGE=docker.io/library/python:3.13-slim-trixie
ARG BUILD_IMAGE=${BASE_IMAGE}

FROM ${BUILD_IMAGE} AS build
# Some bases have a user of their own, who may not write where this does.
USER 0:0
WORKDIR /build
# What pip writes and Python compiles must not depend on when or in what order.
ARG SOURCE_DATE_EPOCH=1577836800
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} \
    PYTHONHASHSEED=0 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_NO_COMPILE=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv tools && python3 -m venv --without-pip /opt/kftrainer

# Only this step asks the package index, and only for what the locks name. Who uses a mirror gives
# pip.conf as a secret, and ca.crt for a CA of their own (`cert = /run/secrets/ca.crt` in pip.conf).
COPY requirements.lock requirements-build.lock ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    tools/bin/pip install --quiet --only-binary :all: --require-hashes \
        -r requirements-build.lock && \
    tools/bin/pip --python /opt/kftrainer/bin/python install --quiet --only-binary :all: \
        --require-hashes -r requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN tools/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir wheels . && \
    tools/bin/pip --python /opt/kftrainer/bin/python install --quiet --no-index --no-deps \
        wheels/*.whl

# The root file system may be read-only, so the bytecode is made here; it is never checked against
# the sources, whose times say nothing.
RUN find /opt/kftrainer/bin -type f ! -name kftrainer -delete && \
    rm -rf /opt/kftrainer/include && \
    /opt/kftrainer/bin/python -m compileall -q --invalidation-mode unchecked-hash \
        /opt/kftrainer/lib && \
    find /opt/kftrainer -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +


FROM ${BASE_IMAGE}
USER 0:0
COPY --from=build /opt/kftrainer /opt/kftrainer
# The user is in no passwd file, and libraries ask for its home; nobody can put a kubeconfig there.
ENV HOME=/ \
    PATH=/opt/kftrainer/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1
RUN --mount=type=bind,source=hack/image,target=/tmp/image ["python3", "/tmp/image/finish.py"]

ARG VERSION=""
ARG REVISION=""
ARG CREATED=""
LABEL org.opencontainers.image.title="kftrainer" \
      org.opencontainers.image.description="A Kubernetes operator for distributed ML training that speaks the Kubeflow Trainer v2 API" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"

WORKDIR /
USER 65532:65532
# Probes, metrics, webhook.
EXPOSE 8081 8443 9443
# For who runs it without Kubernetes: the kubelet has probes of its own.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python3", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8081, timeout=4); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["kftrainer"]
CMD ["manager"]
