"""What is known about GPU models and about jobs' models: speeds, stage times, scaling, and the options that give them.

May import: core, bounded, files, learning, policies.
"""
