"""What a user asks for: its schema, whether it can be had, and what can be done to it later.

May import: what live may.
"""
