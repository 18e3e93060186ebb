"""The REST API and its event streams, and the process that `gpuloom up` starts.

May import: everything but cli, client and report.
"""
