"""The compiled shim on real GPUs: building, loading and attaching it, shared memory, MPS.

May import: what sharing may.
"""
