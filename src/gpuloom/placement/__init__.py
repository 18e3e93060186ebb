"""Where a chosen job goes: pools of free GPUs, the ordered planner, clearing nodes, reservations.

May import: core.
"""
