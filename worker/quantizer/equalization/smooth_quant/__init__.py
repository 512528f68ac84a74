"""SmoothQuant: scale moves from the activations of linear layers into their weights, so that both fit their grids."""
