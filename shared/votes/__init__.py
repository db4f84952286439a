"""What a site can be asked, and the bounded ballots that answer it."""
