"""The tokenizers of folders in Hugging Face's format, from all their files.

`tokenizer_files` reads the files with their settings and special tokens, `tokenizer_class` finds
the class, `tokenizer_recipes` defines how each class makes its tokenizer from its pieces, and
`sentence_pieces` converts a SentencePiece model. `folder_vocabulary` combines them. `exact_pieces`
converts the models of vocabularies trained here, for folders that are written.
"""
