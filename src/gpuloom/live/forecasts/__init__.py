"""Forecasts: remaining running times, starts and ends of jobs, and how good past forecasts were.

May import: what live may; of its rooms planning and records.
"""
