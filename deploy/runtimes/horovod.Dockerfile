# An image for Horovod jobs in pods, from the folder of the project:
#   docker build -f deploy/runtimes/horovod.Dockerfile -t registry.example/horovod:1 .
# Any image with horovodrun will do as its base: --build-arg BASE=…
ARG BASE=horovod/horovod:0.28.1
FROM ${BASE}
USER root
RUN apt-get update \
 && apt-get install -y --no-install-recommends openssh-server openssh-client \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home trainer
# The node-discovery program is a file that stands alone, for any Python from 3.8 on.
COPY src/gpuloom/training/discover_hosts.py /opt/gpuloom/
COPY deploy/runtimes/sshd_config deploy/runtimes/workers-sshd deploy/runtimes/master-horovodrun /opt/gpuloom/
# Workers listen at a port above 1024, as they aren't root; who calls them looks there.
RUN mkdir -p /etc/ssh/ssh_config.d \
 && printf 'Host *\n  Port 2222\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n' \
    > /etc/ssh/ssh_config.d/gpuloom.conf \
 && grep -q '^Include' /etc/ssh/ssh_config || sed -i '1i Include /etc/ssh/ssh_config.d/*.conf' /etc/ssh/ssh_config
ENV PATH=/opt/gpuloom:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /work
CMD ["horovodrun", "--help"]
