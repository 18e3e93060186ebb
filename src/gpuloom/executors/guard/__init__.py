"""The guards of a node: two small processes that end its runs when its lease is over, whatever else has died.

May import: what executors may, and only what is light: it is started without site-packages (`main`).
"""
