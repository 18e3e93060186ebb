"""What a training script may import: standard library and the user's own ML framework only.

May import: nothing of gpuloom.
"""
