"""Problems: every error code that a client can meet."""
