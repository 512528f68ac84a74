"""Whose turn it is: which queued job a slot takes next."""
