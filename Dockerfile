# The portal. Web, gateway, control worker, beat, node worker and one-off jobs run this image with different commands.
# Build: docker build -t berth .
FROM python:3.11-slim-bookworm AS build
WORKDIR /opt/berth
# `gpu` has what the GPU check needs as well: compose.gpu.yaml.
ARG LOCK=portal
# Source of packages, if it is not pip's default index.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_DEFAULT_TIMEOUT
COPY requirements/${LOCK}.lock requirements/
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/${LOCK}.lock
# Software of workspaces is in a separate environment, so that a notebook cannot import the portal.
COPY requirements/notebook.lock requirements/notebook.lock
RUN python -m venv /opt/notebook && /opt/notebook/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/notebook.lock

FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap nftables passt \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin berth \
    && install -d -o berth -g berth -m 0700 /var/lib/berth /var/lib/berth/run /var/lib/berth/redis \
        /var/lib/berth/homes /var/lib/berth/local /var/lib/berth/keys /var/lib/berth/environments \
        /var/lib/berth/authority /var/lib/berth/doors /var/lib/berth/door-socket
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/notebook /opt/notebook
WORKDIR /opt/berth
COPY manage.py ./
COPY portal portal
COPY provisioning provisioning
COPY templates templates
COPY static static
COPY docs docs
# A page of the documentation is a link to the changelog.
COPY CHANGELOG.md ./
COPY LICENSE ./
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/berth \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    BERTH_HOME=/var/lib/berth
RUN python -m compileall -q portal provisioning \
    && ln -s /opt/notebook /var/lib/berth/environments/notebook \
    && python manage.py collectstatic --noinput --verbosity 0 \
    && chown -R berth:berth /var/lib/berth/static
USER 10001:10001
CMD ["python", "-m", "gunicorn", "-c", "python:portal.embedded.web_server", "portal.wsgi:application"]
