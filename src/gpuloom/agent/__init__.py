"""This machine: its GPUs and memory, their health, and the processes on them.

May import: core, and of files what reads the records of hooks.
"""
