"""Objectives over chunks of running text: denoising and language modeling."""
