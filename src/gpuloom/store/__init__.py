"""Events and records on disk: the port, SQLite, memory, migrations, backups, the home directory.

May import: core.
"""
