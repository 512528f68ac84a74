"""The audit: who did what, one row per deed, chained so that tampering is found."""
