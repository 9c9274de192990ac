"""One layer, and stacks of layers."""
