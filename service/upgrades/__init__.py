"""What the pending migrations would do to a database in use."""
