"""The DenseNets of the paper's §3: BatchNorm re-estimated after training with dropout, on three data sets."""
