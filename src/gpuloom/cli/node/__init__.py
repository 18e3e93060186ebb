"""Commands of `gpuloom node`: machines that join a scheduler.

May import: see gpuloom.cli.
"""
