# An image for TensorFlow jobs in pods, from the folder of the project:
#   docker build -f deploy/runtimes/tensorflow.Dockerfile -t registry.example/tensorflow:1 .
# `fit` of Keras 3 fails under MultiWorkerMirroredStrategy: scripts use tf_keras, or a loop of their own.
FROM python:3.11-slim
COPY . /tmp/gpuloom
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && pip install --no-cache-dir 'tensorflow[and-cuda]>=2.19,<3' 'tf_keras>=2.19,<3' /tmp/gpuloom \
 && rm -rf /tmp/gpuloom
COPY examples/training/keras_2.py examples/training/keras_workers.py /work/
RUN useradd --uid 10001 --create-home trainer
USER 10001:10001
WORKDIR /work
ENV PYTHONUNBUFFERED=1 TF_USE_LEGACY_KERAS=1
CMD ["python", "keras_2.py", "--help"]
