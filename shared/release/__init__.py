"""The gate that every release passes, and the release folder."""
