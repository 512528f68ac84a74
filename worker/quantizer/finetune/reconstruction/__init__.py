"""What both solvers share: layers, their samples, and the tally of their errors."""
