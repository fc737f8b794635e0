# An image for processors without a GPU, x86-64 or ARM. It trains, predicts and serves. Build it in the checkout:
#   docker build -f deploy/cpu.Dockerfile -t parallel-epochs:cpu .
#   docker run --rm -v "$PWD/runs:/work" parallel-epochs:cpu train hydra.run.dir=/work/first
#   docker run --rm -v "$PWD/runs:/work" -p 127.0.0.1:8000:8000 parallel-epochs:cpu serve --help
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# The wheel with compiled kernels, and pymetis, which has no wheel for Linux on ARM.
RUN pip install --no-cache-dir "setuptools>=70.1" \
    && PARALLEL_EPOCHS_KERNELS=/kernels pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip wheel --no-cache-dir --no-deps --constraint constraints.txt --wheel-dir /wheels pymetis

FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Extras of pyproject.toml, with a comma between them.
ARG EXTRAS=serve,parquet
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" --constraint /constraints.txt --find-links /wheels \
    "parallel-epochs[$EXTRAS] @ file://$(ls /wheels/parallel_epochs-*.whl)" \
    && useradd --create-home --uid 1000 worker && install --directory --owner worker /work
USER worker
WORKDIR /work
ENTRYPOINT ["parallel-epochs"]
CMD ["--help"]
