"""How many GPUs an elastic job gets.

May import: core, placement.
"""
