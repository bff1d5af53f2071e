"""A map of where the paper's VGG trains: initialisations against learning rates, on tasks that it learns in minutes."""
