"""Slurm below gpuloom: its commands and what they print, the script of a pilot, and the controller of pilots.

May import: core, bounded, files.
"""
