"""The reproduction of Hendrycks & Gimpel: one file for each experiment, and the command line."""
