"""One policy a file, what a policy is (`base`), and the registry of them.

May import: core, bounded, placement, interleave, scaling, learning, solvers; no policy imports another.
"""
