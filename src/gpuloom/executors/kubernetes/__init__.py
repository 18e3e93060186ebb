"""Members of attempts as pods of a Kubernetes cluster: made by its Jobs, held by a gate, pinned to their nodes.

May import: what executors may.
"""
