"""Workers: which queues somebody takes jobs from."""
