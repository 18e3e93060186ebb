"""The API's answers: their types, and how they are made of records.

May import: what live may; of its rooms the scheduler and what that may.
"""
