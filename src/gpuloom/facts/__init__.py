"""What is known of GPU models and of jobs' models: speeds, stage times, scaling, and the options that give them.

May import: core, bounded, files, learning, policies.
"""
