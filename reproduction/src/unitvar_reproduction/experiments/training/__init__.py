"""The training study: which initialisation trains best, family by family."""
