"""The worker: claims jobs, supervises runner processes, and contains the quantizer."""
