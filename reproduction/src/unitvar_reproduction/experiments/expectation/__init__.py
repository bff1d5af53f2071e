"""Dropout at test time: switched off, sampled, or integrated out."""
