"""What a run directory says, for people and for programs: a summary, as text and as JSON."""
