"""Dispatch: which queued jobs are released to workers, in what order, and how their messages are sent.

A job is released while a slot is free for it, and not before: until then priorities, the turns of tenants and limits
may still change who comes next. A released job goes to the broker as an ordinary Celery task, one message per attempt;
the worker's claim in the database decides whether it runs. Without a broker a worker releases for its own slots.
"""
