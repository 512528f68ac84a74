"""The audit log: who did what, one row per action, chained so that tampering is detected."""
