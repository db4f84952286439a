"""Secure sum: the coordinator learns the sum of the sites' vectors and nothing else."""
