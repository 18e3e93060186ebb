"""Reading what users write, YAML and JSON, so that no input costs more than it is worth.

May import: nothing of gpuloom.
"""
