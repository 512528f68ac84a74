"""The reconciler: small idempotent loops; any number of reconcilers may run at any time.

A loop's round is a function that says how much it did; ``loops`` keeps them going. Nothing here holds a lock while it
talks to the broker or the disk, and nothing breaks if two do the same.
"""
