"""What this machine has and how it fares: its GPUs and memory, their health, the processes on them.

May import: core.
"""
