"""Jobs that share GPUs: who with whom, and how fast each runs beside the others.

May import: core, solvers.
"""
