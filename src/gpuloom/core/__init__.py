"""Nouns and rules: jobs in columns, the cluster, the state and its only mutator, decisions, events, units, errors.

May import: nothing of gpuloom.
"""
