"""The reproduction of Hendrycks & Gimpel: experiments, their report and the command line."""
