"""Kubernetes below gpuloom: its API, lists that stay up to date, and the jobs that its objects stand for.

May import: core, bounded.
"""
