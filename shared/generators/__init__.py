"""Public generators: what evolution varies, and how it is rendered."""
