"""From decisions to runs: what the executor is told, and what it says.

May import: what live may.
"""
