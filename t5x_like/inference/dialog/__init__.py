"""Dialogs: candidate responses that are rated and ranked, and tools (Thoppilan et al. 2022)."""
