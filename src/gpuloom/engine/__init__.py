"""One step of scheduling: take events in, ask the policy, check its whole plan, apply it; and when it is asked next.

May import: core, placement, policies.
"""
