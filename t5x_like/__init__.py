"""Pretrained language models in JAX and Flax, from the Transformer on."""
