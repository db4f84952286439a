"""Mechanisms: integer noise from the operating system's randomness."""
