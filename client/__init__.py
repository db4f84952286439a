"""The institution's side: the only folder that opens private data."""
