"""Networks: encoder, decoder, encoder-decoder, and their variants."""
