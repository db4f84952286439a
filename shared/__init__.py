"""The algorithm of patevolve: it knows no transport and opens no private file."""
