"""Public schemas and tables of records, and how a site shards its units."""
