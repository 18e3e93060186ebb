"""The simulator: `simulate` replays a workload on a cluster under a policy.

May import: core, learning, placement, policies, engine, facts, traces.
"""

from gpuloom.sim.failures import Failure
from gpuloom.sim.result import SimResult
from gpuloom.sim.simulator import Settings, simulate
from gpuloom.sim.window import windowed

__all__ = ["Failure", "Settings", "SimResult", "simulate", "windowed"]
