"""What would help a network that lost accuracy: from facts to fragments of configs, tried where time allows."""
