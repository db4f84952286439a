"""The coordinator's side: it sees noised tallies and synthetic samples, nothing else."""
