"""Processes of jobs: the port that every executor serves, the local one, its link to the runner, logs.

May import: core, kubernetes, of training what enters a job's environment, of files what reads the records of hooks.
"""
