"""The scheduler on paper, driven by hand, and what `gpuloom policies check` tries with it.

May import: what live may.
"""
