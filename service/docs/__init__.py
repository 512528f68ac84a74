"""The page of the API's documentation."""
