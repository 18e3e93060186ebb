"""`gpuloom share`: the commands for kernel-level sharing of one GPU.

May import: everything.
"""
