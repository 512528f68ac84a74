"""Deliveries: claimed by one reconciler at a time, settled by what became of them."""
