"""One step of scheduling: take events in, ask the policy, check its whole plan, apply it.

May import: core, placement, policies.
"""
