"""`gpuloom demo`: a scheduler of its own runs a few small jobs and compares them with the simulator.

May import: everything.
"""
