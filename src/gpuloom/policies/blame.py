"""Which policy failed, and where: an error of its code in a few words."""

from __future__ import annotations

import sys
from types import TracebackType

from gpuloom.bounded.text import cut
from gpuloom.core.errors import GpuloomError
from gpuloom.policies.base import Policy

MOST_TEXT = 500
"""Characters of an error that are kept: some hold all the data there is."""


def said(error: BaseException) -> str:
    """'KeyError: 3', whatever the error does when it is asked for its text; of an error of ours its text alone."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an error whose own text fails
        text = ""
    if text and isinstance(error, GpuloomError):
        return cut(text, MOST_TEXT)
    name = type(error).__name__
    return cut(f"{name}: {text}" if text else name, MOST_TEXT)


def where(error: BaseException, policy: Policy | None) -> str:
    """'gpuloom_user_fair.py:42', the last line of the policy's own module (or of its base policy's) on the way to the
    error; '' if there is none."""
    files = set()
    while policy is not None:
        for cls in type(policy).__mro__:
            if cls is not Policy and issubclass(cls, Policy):
                files.add(getattr(sys.modules.get(cls.__module__), "__file__", None))
        policy = policy.inner
    found, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if name in files or (not files and not _ours(step)):
            found = f"{name.rpartition('/')[2]}:{step.tb_lineno}"
        step = step.tb_next
    return found


def _ours(step: TracebackType) -> bool:
    return str(step.tb_frame.f_globals.get("__name__", "")).partition(".")[0] in ("gpuloom", "importlib")
