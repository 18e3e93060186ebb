"""Processes of jobs: the port that every executor serves, the local one and its runner, cgroups, logs.

May import: core.
"""
