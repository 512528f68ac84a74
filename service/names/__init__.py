"""Names of models and datasets: versions, references, aliases, deletion; shared by both."""
