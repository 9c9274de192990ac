"""Pretraining objectives of encoders: masked tokens in rows of one or two segments, or plain."""
