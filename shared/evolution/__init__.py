"""Populations: variation, scores from released statistics, selection."""
