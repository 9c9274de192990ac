"""Look at what a model computes for a text: the numbers of a page, and the server that shows it."""
