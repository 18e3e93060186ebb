"""Ways to learn from numbers: clusters, fits, tables, hazards; they know no jobs.

May import: core, bounded.
"""
