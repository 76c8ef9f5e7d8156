"""What a run leaves on disk: the schema of its records, their writer and their reader."""
