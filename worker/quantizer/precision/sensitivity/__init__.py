"""What the precision of each layer does to the output."""
