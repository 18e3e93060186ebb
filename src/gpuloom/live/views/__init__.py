"""The shape of the API's answers.

May import: what live may.
"""
