"""What is read off the states of an encoder."""
