"""What has happened: the ledger, the fleet, the past as a trace.

May import: what live may; of its rooms none.
"""
