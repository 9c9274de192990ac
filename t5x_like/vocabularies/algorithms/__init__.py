"""Subword algorithms in plain Python, to read: BPE, WordPiece and unigram.

They learn from words with their counts. Vocabularies for training come from the libraries, which
are faster (`vocabularies.trainers`); the tests compare the two.
"""
