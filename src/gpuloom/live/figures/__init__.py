"""Figures over time: what is sampled, how it is thinned and kept, and figures of what ran in a span of time.

May import: what live may; of its rooms planning and records.
"""
