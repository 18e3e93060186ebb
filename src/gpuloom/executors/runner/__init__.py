"""The runner's process: the parent of all jobs of a home, which outlives the scheduler.

May import: what executors may, and only what is light: it is started without site-packages (`main`).
"""
