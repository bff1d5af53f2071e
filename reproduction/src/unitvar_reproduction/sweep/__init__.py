"""Many trials: where they run, in which order, and what they leave on disk."""
