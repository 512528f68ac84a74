"""Webhooks: tenants' own endpoints are told of events, signed by Standard Webhooks.

``outbox.emit`` writes what is to be told in the transaction that it tells of; ``repository`` claims it,
``settling`` settles it, for the reconciler that sends it.
"""
