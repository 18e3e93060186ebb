"""Jobs that share GPUs: which with which, and how fast each runs beside the others.

May import: core, solvers.
"""
