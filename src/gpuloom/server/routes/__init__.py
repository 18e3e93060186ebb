"""The API's paths, a file for each group of them.

May import: what server may.
"""
