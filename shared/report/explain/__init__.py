"""The interactive PATE page: one offline file whose numbers are tables that the library computed."""
