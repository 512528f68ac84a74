"""How the service grows: requests, workers, and rows; see ``__main__``."""
