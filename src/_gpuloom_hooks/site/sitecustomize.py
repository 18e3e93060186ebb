"""The door through which gpuloom's hooks enter a job's Python: this folder is the first of PYTHONPATH.

Loads the package above by its path, starts it, and then runs the sitecustomize that this one shadows, if there is one.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

NAME = "_gpuloom_hooks"


def load(package: str) -> None:
    """Import the hooks from their folder, which is not on the job's path, and start them."""
    from importlib.util import module_from_spec, spec_from_file_location

    if NAME not in sys.modules:
        spec = spec_from_file_location(NAME, os.path.join(package, "__init__.py"), submodule_search_locations=[package])
        if spec is None or spec.loader is None:
            return
        module = module_from_spec(spec)
        sys.modules[NAME] = module
        spec.loader.exec_module(module)
    sys.modules[NAME].start()


def chain(own: str) -> None:
    """Run the sitecustomize that comes next on the path. What fails in it is its own, as without us."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    places = [os.path.abspath(path or ".") for path in sys.path]
    after = places.index(own) + 1 if own in places else 0
    spec = PathFinder.find_spec("sitecustomize", places[after:])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def enter(own: str) -> None:
    if getattr(sys, NAME, False):  # one that we chain has chained us
        return
    setattr(sys, NAME, True)
    if os.environ.get("GPULOOM_HOOKS", "off") not in ("", "off"):
        with suppress(Exception):  # the job runs on; gpuloom sees that there is no record
            load(os.path.dirname(own))
    chain(own)
    if NAME in sys.modules and os.environ.get("GPULOOM_FORKS", "off") != "off":
        from _gpuloom_hooks import forking  # once all is as the script is to find it

        forking.serve()


if __name__ == "sitecustomize":
    enter(os.path.dirname(os.path.abspath(__file__)))
