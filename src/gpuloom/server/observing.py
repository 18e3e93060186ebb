"""`gpuloom observe`: which cluster is watched, and what watches it."""

from __future__ import annotations

import logging

from gpuloom.kubernetes.api import Api, connect
from gpuloom.kubernetes.objects import GPU_RESOURCES, Reader
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.watching import Watching, WatchingScheduler
from gpuloom.server.options import ObserveOptions

log = logging.getLogger("gpuloom.watching")


def api_of(options: ObserveOptions) -> Api:
    """Raises InputError: the kubeconfig can't be used; MissingDependencyError."""
    return connect(options.kubeconfig, options.context)


def watching_of(options: ObserveOptions, api: Api, live: LiveScheduler) -> Watching:
    """What watches the cluster, with all that can be seen now written down.

    Raises:
        GpuloomError: nodes or pods can't be read. StoreError: it can't be written down.
    """
    scheduler = live.scheduler
    assert isinstance(scheduler, WatchingScheduler)  # noqa: S101 - it was asked for
    reader = Reader(options.gpu_resources or GPU_RESOURCES)
    watching = Watching(api, scheduler, reader, live.home.db, options.namespaces)
    try:
        watching.first()
    except BaseException:
        watching.stop()
        raise
    if unread := watching.unread():
        log.info("not there, or not to be read: %s", ", ".join(unread))
    return watching
