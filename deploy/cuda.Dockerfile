# An image for an NVIDIA GPU. The machine needs the driver and NVIDIA's container toolkit. Build it in the checkout:
#   docker build -f deploy/cuda.Dockerfile -t parallel-epochs:cuda .
#   docker run --rm --gpus all -v "$PWD/runs:/work" parallel-epochs:cuda train hydra.run.dir=/work/first
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir "setuptools>=70.1" \
    && PARALLEL_EPOCHS_KERNELS=/kernels pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
# torch from the package index brings CUDA's libraries, 5 GB. Triton compiles a small file in C for each of its kernels.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG EXTRAS=triton,serve,parquet
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --constraint /constraints.txt \
    "parallel-epochs[$EXTRAS] @ file://$(ls /wheels/parallel_epochs-*.whl)" \
    && useradd --create-home --uid 1000 worker && install --directory --owner worker /work
USER worker
WORKDIR /work
ENTRYPOINT ["parallel-epochs"]
CMD ["--help"]
