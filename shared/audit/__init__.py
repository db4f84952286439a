"""Attacks that would find a fault, and what their results are worth: bounds, canaries, membership, copying."""
