"""One training loop: its schedule, its checkpoints, several processes, and BatchNorm statistics after it."""
