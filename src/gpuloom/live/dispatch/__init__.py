"""From decisions to runs: commands to the executor, and its reports.

May import: what live may; of its rooms planning and records.
"""
