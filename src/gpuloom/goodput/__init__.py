"""Pollux' simulation (OSDI '21): jobs whose batch size can change, and with it their statistical efficiency.

A second, small simulation beside gpuloom's own, because its rules differ: time runs in steps of a minute, work is
epochs of training instead of seconds, and the measure is goodput, throughput times statistical efficiency.

May import: core, scaling, solvers, policies, traces.
"""

from gpuloom.goodput.applications import Application, load_applications, load_models
from gpuloom.goodput.base import Cluster, Nodes, Rule, parse_cluster
from gpuloom.goodput.registry import RULES, create_rule
from gpuloom.goodput.run import NODES, STEP_S, PolluxResult, simulate
from gpuloom.goodput.workload import Submission, read_submissions

__all__ = [
    "NODES",
    "RULES",
    "STEP_S",
    "Application",
    "Cluster",
    "Nodes",
    "PolluxResult",
    "Rule",
    "Submission",
    "create_rule",
    "load_applications",
    "load_models",
    "parse_cluster",
    "read_submissions",
    "simulate",
]
