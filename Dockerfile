# The gateway as a small non-root image. Build context: the repository.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md CHANGELOG.md LICENSE ./
COPY gateway gateway
COPY tokenizers/manifest.toml tokenizers/manifest.toml
COPY tokenizers/poolgate-tiny tokenizers/poolgate-tiny
RUN python -m venv /opt/poolgate \
 && /opt/poolgate/bin/pip install --no-cache-dir -c constraints.txt '.[otel]'

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home poolgate
COPY --from=build /opt/poolgate /opt/poolgate
COPY config/poolgate.yaml /etc/poolgate/poolgate.yaml
ENV PATH=/opt/poolgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 8080 9090
# The admin plane answers as long as the process lives, whatever engines or stores do.
HEALTHCHECK --interval=10s --timeout=3s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9090/healthz', timeout=2)"]
ENTRYPOINT ["poolgate"]
CMD ["serve", "--config", "/etc/poolgate/poolgate.yaml", "--listen", "0.0.0.0:8080", "--admin", "0.0.0.0:9090"]
