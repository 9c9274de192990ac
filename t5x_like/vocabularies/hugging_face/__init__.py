"""The tokenizers of folders in Hugging Face's format, from all their files.

`tokenizer_files` reads the files, `tokenizer_class` finds the class, `token_settings` the special
and added tokens; `piece_recipes` and `unigram_recipes` have what each class does with its pieces,
and `sentence_pieces` converts a SentencePiece model. `tokenizer_folder` puts them together, and
`folder_vocabulary` gives the result the ids that the folder names.
"""
