"""Health: is the process up, can it do its work, and what is it."""
