"""From text to batches: vocabularies, objectives, mixtures, packing. TensorFlow stays in here."""
