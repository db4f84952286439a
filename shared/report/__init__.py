"""The run's report: one JSON file and one offline page."""
