"""The simulator: `simulate` replays a workload on a cluster under a policy."""

from gpuloom.sim.failures import Failure
from gpuloom.sim.result import SimResult
from gpuloom.sim.simulator import Settings, simulate

__all__ = ["Failure", "Settings", "SimResult", "simulate"]
