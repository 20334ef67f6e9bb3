# README.md's install in an image, for machines with docker or apptainer:
#     docker build -t highrank_plugins .
#     docker run --gpus all -v "$PWD/exp:/highrank_plugins/exp" highrank_plugins bash recipes/…/run.sh
# One Linux with a C++ compiler and Python 3.11; torch brings CUDA's libraries.
FROM python:3.11-bookworm
WORKDIR /highrank_plugins
COPY . .
RUN bash scripts/setup.sh
ENV PATH=/highrank_plugins/.venv/bin:$PATH
