"""Names of models and datasets: versions, references by name, aliases, deletion; what both have in common."""
