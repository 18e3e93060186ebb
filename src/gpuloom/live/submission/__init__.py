"""Job specs: their schema, the check whether a cluster can run them, and later changes.

May import: what live may; of its rooms the scheduler and what that may.
"""
