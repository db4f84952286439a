"""The coordinator's live page over a run folder: read-only, and never more than the coordinator itself sees."""
