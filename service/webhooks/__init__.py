"""Webhooks: events sent to tenants' URLs, signed according to Standard Webhooks.

``outbox.emit`` writes what is to be told in the transaction that it tells of; ``repository`` claims it,
``settling`` settles it, for the reconciler that sends it.
"""
