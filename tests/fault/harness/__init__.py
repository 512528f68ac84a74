"""An installation that a test may break: private servers, real processes, and the signals that hurt them."""
