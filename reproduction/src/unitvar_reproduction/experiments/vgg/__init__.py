"""The VGG of the paper's §2.3.2 on CIFAR-10: initialisations compared over optimisers and rates."""
