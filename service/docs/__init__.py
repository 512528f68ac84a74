"""The documentation: the API's page, and the pages of docs/ that are made from the contracts."""
