"""Models that kill the process that works on them are refused until somebody releases them."""
