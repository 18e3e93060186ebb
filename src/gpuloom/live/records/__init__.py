"""What has happened: the ledger, the past as a trace, the policy's memory on disk.

May import: what live may.
"""
