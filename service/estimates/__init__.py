"""What a job will take, told before it runs: from the graph, the config's stages, and what earlier jobs took here."""
