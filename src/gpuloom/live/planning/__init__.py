"""From records to decisions: what the policy is shown, when it is asked, and who answers when it fails.

May import: what live may.
"""
