"""The workshop: claims jobs, supervises runner processes, and holds the quantizer."""
