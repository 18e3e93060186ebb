"""The live scheduler: its thread, its service for the API, the machine's monitor, and how all parts are joined.

May import: everything but cli, server, client and report.
"""
