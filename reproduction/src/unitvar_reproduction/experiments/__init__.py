"""One file or folder for each table or figure: its claim, its trial, its summary."""
