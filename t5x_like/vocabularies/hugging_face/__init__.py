"""The tokenizers of folders in Hugging Face's format, from all their files.

`tokenizer_files` reads the files, `tokenizer_class` finds the class, `token_settings` the special
and added tokens; `piece_recipes` and `unigram_recipes` define how each class makes its tokenizer
from its pieces, and `sentence_pieces` converts a SentencePiece model. `exact_pieces` makes the
tokenizers that this package writes. `tokenizer_folder` combines
them, and `folder_vocabulary` adds the ids of special tokens that the folder names.
"""
