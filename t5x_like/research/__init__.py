"""Research with runs: what one costs, laws of many, studies of claims, what a model computes."""
