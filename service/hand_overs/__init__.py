"""Hand-overs: results of a job sent to the client's own storage by presigned PUT, or as a POST.

``outbox`` writes them with their job and makes them due with its end; ``settling`` notes what became of an attempt, for
the reconciler that sends them. URLs and headers are secrets: they are kept sealed, and forgotten with the end.
"""
