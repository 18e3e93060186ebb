"""A scheduler without processes, driven step by step, and the checks that `gpuloom policies check` makes with it.

May import: what live may.
"""
