"""What hostile files and requests may not do."""
