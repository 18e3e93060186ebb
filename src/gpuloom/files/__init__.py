"""Reading tables from files, packed or not, and writing files whole.

May import: core.
"""
