"""Public encoders: records and candidates to feature vectors."""
