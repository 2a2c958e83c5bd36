# A small image with `octavo serve` as an ordinary user.
#   docker build -t octavo .
#   docker run -p 8000:8000 -e OCTAVO_API_KEY=secret -v octavo-models:/models octavo smollm2-135m
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml CMakeLists.txt README.md ./
COPY csrc csrc
COPY src src
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[server]'

FROM python:3.12-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'octavo[server]' \
    && useradd --uid 10001 --home-dir /models --create-home octavo
USER octavo
WORKDIR /models
ENV HF_HOME=/models/huggingface OCTAVO_CACHE=/models/octavo PYTHONUNBUFFERED=1
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["octavo", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["smollm2-135m"]
