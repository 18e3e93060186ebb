"""From records to decisions: what the policy sees, when it is asked, and what replaces it when it fails.

May import: what live may; of its rooms records.
"""
