"""What is left of jobs, when they start and end, and how good such forecasts have been.

May import: what live may.
"""
