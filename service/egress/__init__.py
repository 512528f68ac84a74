"""Outgoing requests to addresses given by clients, such as webhooks.

A client must not be able to make the service speak to what only the service can reach (server-side request forgery).
So the URL is judged by its form, every address that its host resolves to is judged, and the connection goes to an
address that was judged: the name is not resolved a second time (DNS rebinding). This package knows no noun.
"""
