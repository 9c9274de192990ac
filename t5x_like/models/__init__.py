"""The shared Flax parts that systems assemble: attention, feed-forwards, blocks, stacks."""
