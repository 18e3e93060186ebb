# An image for PyTorch jobs in pods, from the folder of the project:
#   docker build -f deploy/runtimes/pytorch.Dockerfile -t registry.example/pytorch:1 .
# Put your own script and what it needs in place of the example, or begin your Dockerfile with FROM this image.
FROM python:3.11-slim
COPY . /tmp/gpuloom
# gcc: one part of gpuloom needs it to be built, and torch.compile to run. The helpers of gpuloom.training come with it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/* \
 && pip install --no-cache-dir 'torch>=2.8,<3' numpy /tmp/gpuloom \
 && rm -rf /tmp/gpuloom
COPY examples/training/train_ddp.py /work/
# Not root. The number is that of all files that a job writes: the volume with checkpoints has to let it.
RUN useradd --uid 10001 --create-home trainer
USER 10001:10001
WORKDIR /work
ENV PYTHONUNBUFFERED=1
CMD ["torchrun", "--help"]
