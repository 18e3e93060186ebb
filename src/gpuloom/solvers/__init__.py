"""Mathematics without jobs: assignment, matching, linear programs, fair shares.

May import: core.
"""
