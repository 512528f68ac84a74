"""Problems: all error codes of the API."""
